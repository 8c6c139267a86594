// RequestTable: owns the requests and knows in which queue each is. A request is in one of three
// queues until it has ended or left; then it stays for inspection, or for the steps in flight that
// still point to it.
//
// Owned and called by the scheduler's thread. Private to this folder.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "sched/request.h"

namespace millrace::sched {

class RequestTable {
 public:
  using Queue = std::map<OrderKey, Request*>;

  // Not started, preempted or swapped out.
  const Queue& waiting() const { return waiting_; }
  // Have blocks, wait for KV from elsewhere.
  const Queue& pulling() const { return pulling_; }
  // In order.
  const std::vector<Request*>& running() const { return running_; }
  bool empty() const { return waiting_.empty() && pulling_.empty() && running_.empty(); }
  // Of the prompts of waiting requests.
  int64_t waiting_prompt_tokens() const { return waiting_prompt_tokens_; }
  // Waiting requests that are swapped out.
  int swapped() const { return swapped_; }
  // Live sequences of running requests, and of pulling requests.
  int running_sequences() const { return running_sequences_; }
  int pulling_sequences() const { return pulling_sequences_; }

  // REQUIRES: no other request has the id.
  void Add(std::unique_ptr<Request> request);
  // Null: unknown, ended or left.
  Request* Find(RequestId id) const;
  // Also one that has ended since the last ForgetEnded.
  const Request* FindEvenEnded(RequestId id) const;
  // Every request that is not forgotten except those that left, in no order.
  const std::unordered_map<RequestId, std::unique_ptr<Request>>& all() const { return requests_; }
  // Those that left and are in steps in flight.
  std::span<const std::unique_ptr<Request>> leaving() const { return leaving_; }

  // Its place in the order. REQUIRES: it waits.
  void Reorder(Request& request, const OrderKey& key);
  // Moves between the queues. They set the request's state.
  void Pull(Request& request);  // REQUIRES: it waits
  void Run(Request& request);   // REQUIRES: it waits or pulls
  // REQUIRES: it runs. `state`: kPreempted or kSwapped.
  void WaitAgain(Request& request, RequestState state);
  // Its KV on the host is gone. REQUIRES: it is swapped out.
  void DropSwap(Request& request);
  void Finish(Request& request);
  // One of its sequences has ended.
  void NoteEnded(const Request& request);

  // Takes a finished request from its id, which may be added again at once.
  void Leave(Request& request);
  // No step in flight points to the finished request any more.
  void Bury(Request& request);
  void ForgetEnded() { ended_.clear(); }

  // Crashes unless queues, states and counts agree.
  void CheckIntegrity() const;

 private:
  void JoinQueue(Request& request);
  void LeaveQueue(const Request& request);

  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  std::vector<std::unique_ptr<Request>> ended_;
  std::vector<std::unique_ptr<Request>> leaving_;
  Queue waiting_, pulling_;
  int64_t waiting_prompt_tokens_ = 0;
  int swapped_ = 0;
  std::vector<Request*> running_;
  int running_sequences_ = 0;
  int pulling_sequences_ = 0;
};

}  // namespace millrace::sched
