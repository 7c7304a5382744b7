// Server-sent events: a stream of bytes → the text after "data:" of each event.
//
//   an event ends with an empty line · several data lines are joined by \n · a line that begins with ":" is a comment

/** The data of each event in a stream of bytes. Leaving the loop early closes the stream. */
export async function* events(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      text += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = text.split(/\r\n|\n|\r(?!$)/); // a lone \r at the end may be half of \r\n
      text = lines.pop();
      for (const line of lines) {
        if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      }
      if (done) return; // an event without a final empty line is incomplete
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
