"""Text → token shards, sentence pairs → batches, in an order that is a pure function of (seed, epoch, index)."""
