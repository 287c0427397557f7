// One rule: what is put on a page goes through src/page/dom.ts. Nothing else is judged here; tsc does the rest.
import parser from "@typescript-eslint/parser";

const WHY = "only src/page/dom.ts may do this: use what it offers, or add to it a function that lets nothing run";
// Properties that take markup, code, an address or a style.
const PROPERTIES =
  "innerHTML|outerHTML|srcdoc|src|srcset|href|action|formAction|poster|background|cssText|style|attributeStyleMap|" +
  "adoptedStyleSheets|location|on[a-z]+";
// Methods that do.
const METHODS =
  "insertAdjacentHTML|setHTMLUnsafe|setHTML|parseHTMLUnsafe|parseFromString|createContextualFragment|" +
  "createElement|createElementNS|createAttribute|createAttributeNS|setAttribute|setAttributeNS|setAttributeNode|" +
  "setAttributeNodeNS|setNamedItem|setProperty|insertRule|replaceSync|importNode";
const GLOBALS = "DOMParser|Range|XSLTProcessor|CSSStyleSheet|Function|eval|Image|Option|Audio|Worker|SharedWorker";

const restricted = [
  `AssignmentExpression > MemberExpression.left[computed=false][property.name=/^(${PROPERTIES})$/]`,
  // The same by a name that is text, or that is found out as it runs.
  `AssignmentExpression > MemberExpression.left[computed=true][property.value=/^(${PROPERTIES})$/]`,
  // Whatever is done with a style: node.style.width = …, node["style"][name] = …
  'MemberExpression > MemberExpression.object[property.name=/^(style|attributeStyleMap)$/]',
  'MemberExpression > MemberExpression.object[property.value=/^(style|attributeStyleMap)$/]',
  `CallExpression[callee.property.name=/^(${METHODS})$/]`,
  `CallExpression[callee.property.value=/^(${METHODS})$/]`,
  `CallExpression[callee.name=/^(${GLOBALS})$/]`,
  `NewExpression[callee.name=/^(${GLOBALS})$/]`,
  'CallExpression[callee.object.name="document"][callee.property.name=/^(write|writeln)$/]',
  'CallExpression[callee.object.name="document"][callee.property.name="execCommand"][arguments.0.value!="copy"]',
  'CallExpression[callee.object.name=/^(window|location)$/][callee.property.name=/^(open|assign|replace)$/]',
  'CallExpression[callee.object.name=/^(Object|Reflect)$/][callee.property.name=/^(assign|set)$/]',
  'CallExpression[callee.name=/^set(Timeout|Interval)$/] > :matches(Literal, TemplateLiteral).arguments:first-child',
  'ImportExpression[source.type!="Literal"]',
  "Literal[value=/^javascript:/i]",
];

export default [
  {
    files: ["src/**/*.ts"],
    languageOptions: { parser },
    linterOptions: { noInlineConfig: true },
    rules: { "no-restricted-syntax": ["error", ...restricted.map((selector) => ({ selector, message: WHY }))] },
  },
  { files: ["src/page/dom.ts"], rules: { "no-restricted-syntax": "off" } },
];
