"""Text → token shards, sentence pairs → batches, in an order that depends only on (seed, epoch, index)."""
