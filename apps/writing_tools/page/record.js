// What was written, by which step, and when.

export class Record {
  constructor() {
    this.steps = []; // {tokens: [{id, text, drafted_by}, ..], seconds since the start}
    this.text = "";
    this.reason = null; // "stop" or "length" once the text is complete
    this.seen = null; // what decided how much was drafted, in a sentence, once all is complete
    this.start = performance.now();
  }

  add(piece) {
    if (piece.reason) {
      this.reason = piece.reason;
      this.seen = piece.seen ?? null;
      return;
    }
    this.text += piece.text;
    if (!piece.step.length) return;
    this.steps.push({ tokens: piece.step, seconds: (performance.now() - this.start) / 1000 });
  }

  get tokens() {
    return this.steps.flatMap((step) => step.tokens);
  }

  // Tokens of one forward pass, on average.
  get acceptedLength() {
    return this.steps.length ? this.tokens.length / this.steps.length : 0;
  }

  // Tokens per second from the first step to the last; null: there are not two.
  get rate() {
    if (this.steps.length < 2) return null;
    const [first, last] = [this.steps[0], this.steps.at(-1)];
    return (this.tokens.length - first.tokens.length) / (last.seconds - first.seconds);
  }

  // How many tokens `who` guessed: "streams", "lookup", or null, the model itself.
  from(who) {
    return this.tokens.filter((token) => token.drafted_by === who).length;
  }
}
