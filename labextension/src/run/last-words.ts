/** What a page says of a run whose kernel tells no more of it: what is known, and where the rest may be seen. */

import { duration } from "../format";
import type { Fate } from "./model";
import type { Snapshot } from "./schema";

type Outliving = Snapshot["outliving"];

/** The status of a kernel that the server restarts because its process is gone. */
export const DIED = "autorestarting";
// Of one that is "dead" a page cannot tell what has ended it.
const ENDS: Record<string, string> = {
  [DIED]: "died",
  restarting: "has been restarted",
  terminating: "has been shut down",
};

/** The sentence, and what has become of the run, where the notebook's kernel has ended with this status. */
export function afterKernel(pool: string, outliving: Outliving, status: string): [string, Fate] {
  const died = status === DIED;
  const what = `The notebook's kernel ${ENDS[status] ?? "has ended"};`;
  const follow = `\`sky-jupyter logs -f ${pool}\``;
  const attach = `\`%sky attach ${pool}\``;
  if (!outliving) {
    return [`${what} the pool ended with it.`, "stopped"];
  }
  const lease = leaseOf(outliving);
  switch (`${outliving.how} ${died ? "died" : "ended"}`) {
    case "kept died":
      return [`${what} the run continues on the nodes of pool ${pool}: ${attach} takes it up, ${follow} follows it.`, "continues"];
    case "lease died":
      return [
        `${what} the run continues on the nodes of pool ${pool}: ${attach} takes it up, ${follow} follows it. ` +
          `Unless a notebook attaches to it, the pool ends with its lease${lease}.`,
        "continues",
      ];
    case "joined died":
      return [`${what} the run continues on the nodes of pool ${pool} until another notebook's run needs them: ${follow} follows it.`, "continues"];
    case "lease ended":
      // The server gives a kernel some seconds for it, and kills it then.
      return [
        `${what} it ended the pool if it had the time. Otherwise the pool ends with its lease${lease}, unless a ` +
          `notebook attaches to it: ${attach}.`,
        "unknown",
      ];
    case "kept ended":
      return [`${what} pool ${pool} continues: ${attach} shows the run, ${follow} too.`, "unknown"];
    default:
      return [`${what} pool ${pool} continues: ${follow} shows the run.`, "unknown"];
  }
}

/** The sentence of a notebook that was saved while a run went on, of which its kernel `doesNot` tell. */
export function afterSaving({ run, pool, outliving }: Snapshot, doesNot: string): string {
  const what = `This notebook was saved while the run went on, and its kernel ${doesNot}: its output stops there.`;
  const attach = outliving?.how !== "joined" && outliving && pool ? `\`%sky attach ${pool}\`` : "";
  const logs = run ? `\`%sky logs ${run}\`` : "";
  if (attach) {
    return `${what} ${attach} shows the run if the pool is still running${logs ? `; then ${logs} has it too` : ""}.`;
  }
  return logs ? `${what} ${logs} shows the rest if the pool is still running.` : what;
}

/** How long a pool's lease is, as a part of a sentence. */
function leaseOf(outliving: NonNullable<Outliving>): string {
  return outliving.lease ? `, at most ${duration(outliving.lease)} after its last run` : "";
}
