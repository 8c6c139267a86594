#include "sched/snapshot.h"

#include <memory>
#include <span>

namespace millrace::sched {

NewRequest SnapshotOf(const Request& request) {
  NewRequest known = request.spec;
  known.imported_tokens.clear();
  known.import_open = false;
  known.stop_after_prompt = false;
  known.hold_kv.reset();
  known.times = request.times;
  known.account = request.account;
  known.cached_prompt_tokens = request.cached_prompt_tokens;
  if (request.beams) known.beams = std::make_shared<const BeamState>(request.beams->state());
  for (const Sequence& s : request.sequences) known.resumed.push_back({s.output, !s.live()});
  return known;
}

namespace {

// A block that still has to be copied for the sequence does not count.
int CommittedTokens(const Sequence& sequence, int block_size) {
  if (!sequence.live() || !sequence.started) return 0;
  const bool copies = sequence.in_flight && sequence.in_flight == sequence.copied_by;
  if (!copies) return sequence.computed;
  return sequence.computed / block_size * block_size;
}

}  // namespace

std::vector<SequenceKv> CommittedKv(const Request& request, const kv::KvCache& cache,
                                    std::optional<LayerRange>* lacking) {
  // The beams of a search are not continued by each other's KV elsewhere; they are computed again.
  if (request.state != RequestState::kRunning || request.beams) return {};
  std::vector<SequenceKv> kv(request.sequences.size());
  bool any = false;
  for (const Sequence& s : request.sequences) {
    // One step swaps in the KV of all sequences, including those that do not run in it.
    if (s.in_flight && s.in_flight == s.swapped_in_by) return {};
    // What needs the whole prompt is delivered with the first token, and is lost if it is imported.
    if (request.needs_whole_prompt && s.live() && s.output.empty()) return {};
    int tokens = CommittedTokens(s, cache.block_size());
    if (lacking && s.live() && s.lacks_layers()) {
      tokens = s.lacking_until;
      *lacking = s.lacking;
    }
    any = any || tokens > 0;
    kv[s.index].tokens = tokens;
    for (kv::BlockHandle block : std::span(s.table).first(cache.BlocksFor(tokens))) {
      kv[s.index].blocks.push_back(block.index);
    }
  }
  if (!any) kv.clear();
  return kv;
}

}  // namespace millrace::sched
