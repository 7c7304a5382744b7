// The tree of a beam search: every continuation that was considered, and what became of it.
//
//   state      chosen: on the way to the best hypothesis        ended: finished, but not the best
//              dropped: leads to no finished hypothesis         live: leads to one
//   logprob    log p of the token          score    log p of all tokens so far
export class Tree {
  constructor() {
    this.nodes = []; // { parent (−1: the begin token), token, logprob, score, step, state }
    this.rows = [-1]; // the node of each live hypothesis
  }

  /** candidates: [{ total, row, token }], best first; ended: whether each ends here; kept: those that live on. */
  grow(candidates, ended, kept, step) {
    const found = new Map();
    candidates.forEach(({ total, row, token }, nth) => {
      if (total === -Infinity || found.has(`${row} ${token}`)) return;
      const parent = this.rows[row];
      const before = parent >= 0 ? this.nodes[parent].score : 0;
      found.set(`${row} ${token}`, this.nodes.length);
      const state = ended[nth] ? "ended" : "dropped";
      this.nodes.push({ parent, token, logprob: total - before, score: total, step, state });
    });
    this.rows = kept.map(({ row, token }) => found.get(`${row} ${token}`) ?? -1);
  }

  /** Set the state of every node, given the tokens of the best hypothesis and the end token. */
  finish(best, end) {
    const ends = [...this.nodes.keys()].filter((place) => this.nodes[place].state === "ended");
    for (const place of [...ends, ...this.rows.filter((row) => row >= 0)])
      for (const above of this.above(place)) this.nodes[above].state = "live";
    const text = best.join(" ");
    const won = ends.filter((place) => this.tokens(place).filter((token) => token !== end).join(" ") === text);
    for (const place of ends) this.nodes[place].state = "ended";
    // Two hypotheses may have the same tokens, one cut and one ended; the more likely one won.
    won.sort((a, b) => this.nodes[b].score - this.nodes[a].score);
    for (const place of won.slice(0, 1))
      for (const node of [place, ...this.above(place)]) this.nodes[node].state = "chosen";
  }

  above(place) {
    const above = [];
    for (let node = this.nodes[place].parent; node >= 0; node = this.nodes[node].parent) above.push(node);
    return above;
  }

  tokens(place) {
    return [place, ...this.above(place)].reverse().map((node) => this.nodes[node].token);
  }
}
