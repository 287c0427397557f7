// What a kernel with Sky Jupyter says of itself, for tests.

/** Its answer to `kernel_info_request`; undefined for other requests. */
export function info(message: { header: { msg_type: string } }): { content: Record<string, unknown> } | undefined {
  const features = ["debugger", "sky_request", "sky_view_request", "sky_widgets_request"];
  const asked = message.header.msg_type === "kernel_info_request";
  return asked ? { content: { status: "ok", supported_features: features } } : undefined;
}
