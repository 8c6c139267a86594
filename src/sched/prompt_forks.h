// PromptForks: how the sequences of a request share the KV of its prompt (vLLM section 4.4). The
// leader computes or imports the prompt; then the others start over the same blocks. Until then,
// the blocks that they will take at once are promised to the request, and no other may have them.
//
// Owned and called by the scheduler's thread. Private to this folder.
#pragma once

#include "kv/kv_cache.h"
#include "sched/request.h"

namespace millrace::sched {

class PromptForks {
 public:
  // Not owned; outlives this object.
  explicit PromptForks(kv::KvCache& kv) : kv_(kv) {}

  int promised_blocks() const { return promised_blocks_; }  // to all requests
  // To be called after a change of the request's state or sequences.
  void UpdatePromise(Request& request);
  // Blocks that the request takes as soon as its prompt is computed: each sequence that waits for
  // it copies the last prompt block, and has its own output to restore.
  int BlocksToCome(const Request& request) const;

  // Leading blocks of the prompt that no sequence writes after the fork.
  int SharedBlocks(const Request& request) const;
  // Whether the sequences had forked where their KV comes from, so that each imports its own.
  bool ImportsForked(const Request& request) const;
  // Gives each of the others a table for what it imports, over the blocks that the leader's import
  // brings. REQUIRES: admission has counted the blocks.
  void TakeTables(Request& request);
  // Undoes TakeTables.
  void DropTables(Request& request);

  // When the prompt is computed, the others start at its last token, over the same blocks. They
  // compute that token again to get their own logits, in a copy of its block (copy-on-write).
  void MaybeStart(Request& request);
  // The same for KV that was imported whole: some have a table already.
  void Start(Request& request);
  // The leader ends before the prompt is computed: the next sequence takes over its blocks and the
  // KV of its step in flight, or leads the import of all. Returns that sequence.
  Sequence& HandOver(Sequence& leader);

 private:
  void LeadImport(Sequence& leader, Sequence& next) const;

  kv::KvCache& kv_;
  int promised_blocks_ = 0;
};

}  // namespace millrace::sched
