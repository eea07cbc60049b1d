// Requests to the server that this page came from.

// Writes a text for each of `chats` [{model, text}, ..], with drafts or without, and yields what comes
// of them, step by step: {number, text, step}, or {number, reason} where a text ends. `step` holds
// the tokens of one forward pass: {id, text, drafted_by}. The last piece of all says what decided how much
// was drafted, in a sentence, `seen`. `reading(share)` is called while a single
// long text is read. Throws an Error with one sentence.
export async function* written(asked, signal, reading = () => {}, draft = true) {
  const chats = asked.map(({ model, text }) => ({
    model, stream: true, draft, max_tokens: 1024, messages: [{ role: "user", content: text.trim() }],
  }));
  const isOne = chats.length === 1;
  // Browsers open six connections to a server at most, so several texts come in one stream.
  const [path, body] = isOne ? ["/v1/chat/completions", chats[0]] : ["/together", { chats }];
  const reply = await answer(path, {
    method: "POST", signal, body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" },
  });
  for await (const { comment, data } of events(reply.body)) {
    const read = comment?.match(/^(\d+) of (\d+) prompt tokens/);
    const ended = comment?.match(/^text (\d+) has ended: (\w+)/);
    if (read && isOne) reading(read[1] / read[2]);
    if (ended) yield { number: Number(ended[1]), reason: ended[2] };
    if (data === "[DONE]") return;
    if (!data) continue;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    for (const choice of chunk.choices) {
      const { index: number, delta, finish_reason: reason } = choice;
      if (reason) yield { number, reason, seen: chunk.specstream?.seen?.sentence };
      else yield { number, text: delta.content ?? "", step: chunk.specstream?.step ?? [] };
    }
  }
  throw new Error("The server broke off.");
}

// The models that the server has: [{id, specstream: {adapter_bytes, base_bytes}}, ..].
export async function models() {
  return (await (await answer("/v1/models")).json()).data;
}

async function answer(path, request) {
  let reply;
  try {
    reply = await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is specstream-mlx writing-tools still running?");
  }
  if (reply.ok) return reply;
  const said = await reply.json().catch(() => null);
  throw new Error(said?.error?.message ?? `The server answered with status ${reply.status}.`);
}

// Server-sent events: each is {data}, or a {comment} on how far the server is.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (unread + value).split("\n");
    unread = lines.pop();
    for (const line of lines) {
      if (line.startsWith(": ")) yield { comment: line.slice(2) };
      if (line.startsWith("data: ")) yield { data: line.slice(6) };
    }
  }
}
