// Breaks each rule alone, on the wire: the error names the field.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "wire/codec.h"
#include "wire/control.pb.h"
#include "wire/testing/random_messages.h"

namespace millrace::wire {
namespace {

std::span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// A valid message, made invalid by `spoil`.
Status Refusal(const ToWorker& good, const std::function<void(proto::ToWorker&)>& spoil) {
  Encoder encoder;
  Decoder decoder;
  const auto bytes = encoder.Encode({}, good);
  MR_CHECK(bytes.ok());
  proto::ToWorker message;
  MR_CHECK(message.ParseFromArray(bytes->data(), static_cast<int>(bytes->size())));
  spoil(message);
  return decoder.DecodeToWorker(Bytes(message.SerializeAsString())).status();
}
Status Refusal(const ToController& good, const std::function<void(proto::ToController&)>& spoil) {
  Encoder encoder;
  Decoder decoder;
  const auto bytes = encoder.Encode({}, good);
  MR_CHECK(bytes.ok());
  proto::ToController message;
  MR_CHECK(message.ParseFromArray(bytes->data(), static_cast<int>(bytes->size())));
  spoil(message);
  return decoder.DecodeToController(Bytes(message.SerializeAsString())).status();
}

void ExpectNames(const Status& status, const std::string& field) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
  EXPECT_NE(status.message().find(field), std::string::npos) << status.ToString();
}

PipelineStep Step() {
  const PipelineStep step = testing::DecodeStep(4);
  auto plan = std::make_shared<StepPlan>(*step.plan);
  plan->started.push_back({SequenceId(1), std::make_shared<SamplingParams>(), 5,
                           std::make_shared<std::vector<TokenId>>(3, 7), nullptr});
  return {step.pipeline, std::move(plan)};
}

void ExpectPlan(const std::string& field, const std::function<void(proto::StepPlan&)>& spoil) {
  SCOPED_TRACE(field);
  ExpectNames(Refusal(Step(), [&](auto& m) { spoil(*m.mutable_pipeline_step()->mutable_plan()); }),
              field);
}

TEST(Refusals, StepPlan) {
  ExpectPlan("num_tokens must be at least 1", [](auto& p) { p.set_num_tokens(2, 0); });
  ExpectPlan("sequences[2]", [](auto& p) { p.set_num_tokens(2, 0); });
  ExpectPlan("first_token + num_tokens", [](auto& p) { p.set_first_token(3, 4); });
  ExpectPlan("first_token + num_tokens", [](auto& p) { p.set_num_tokens(0, 5); });
  ExpectPlan("first_token + num_tokens", [](auto& p) { p.set_first_token(0, INT32_MAX); });
  ExpectPlan("first_new_block + num_new_blocks", [](auto& p) { p.set_num_new_blocks(0, 2); });
  ExpectPlan("first_new_block + num_new_blocks", [](auto& p) { p.set_first_new_block(0, 9); });
  ExpectPlan("start + num_tokens", [](auto& p) { p.set_start(1, INT32_MAX); });
  ExpectPlan("beyond 2147483647", [](auto& p) { p.set_start(1, 0x80000000u); });
  ExpectPlan("beyond 2147483647", [](auto& p) { p.set_num_tokens(1, UINT32_MAX); });
  ExpectPlan("keep_blocks", [](auto& p) { p.set_keep_blocks(1, INT32_MAX); });
  ExpectPlan("logits", [](auto& p) { p.set_logits(0, 3); });
  ExpectPlan("num_tokens has 5 entries for 4", [](auto& p) { p.add_num_tokens(1); });
  ExpectPlan("keep_blocks has 3", [](auto& p) { p.mutable_keep_blocks()->RemoveLast(); });
  ExpectPlan("tokens", [](auto& p) { p.set_tokens(0, 0xffffffffu); });
  ExpectPlan("blocks", [](auto& p) { p.set_blocks(0, 0x80000000u); });
  ExpectPlan("swap_in ends within a pair", [](auto& p) { p.add_swap_in(1); });
  ExpectPlan("copies", [](auto& p) { p.add_copies(1), p.add_copies(0xffffffffu); });
  ExpectPlan("started: params", [](auto& p) { p.mutable_started(0)->set_params(1); });
  ExpectPlan("started: prompt", [](auto& p) { p.mutable_started(0)->set_prompt(7); });
  ExpectPlan("started: output: tokens",
             [](auto& p) { p.mutable_started(0)->mutable_output()->add_tokens(~0u); });
  ExpectPlan("prompts[0]: tokens", [](auto& p) { p.mutable_prompts(0)->set_tokens(0, ~0u); });
  ExpectPlan("sequences has", [](auto& p) {
    for (size_t i = 0; i <= kSequencesPerStepMax; ++i) p.add_sequence(i);
  });
  ExpectPlan("tokens has", [](auto& p) {
    p.mutable_tokens()->Resize(static_cast<int>(kTokensPerStepMax) + 1, 1);
  });
}

TEST(Refusals, SamplingParams) {
  const auto expect = [](const std::string& field, auto spoil) {
    ExpectPlan(field, [&](auto& p) { spoil(*p.mutable_params(0)); });
  };
  expect("params[0]: n must be", [](auto& p) { p.set_n(0); });
  expect("n must be", [](auto& p) { p.set_n(129); });
  expect("temperature", [](auto& p) { p.set_temperature(std::nan("")); });
  expect("top_p", [](auto& p) { p.set_top_p(0); });
  expect("max_tokens", [](auto& p) { p.set_max_tokens(0); });
  expect("logprobs", [](auto& p) { p.set_logprobs(21); });
  expect("stop_token_ids", [](auto& p) { p.add_stop_token_ids(~0u); });
  expect("logit_bias", [](auto& p) { p.add_logit_bias()->set_token(~0u); });
  expect("stop has 17", [](auto& p) {
    for (int i = 0; i < 17; ++i) p.add_stop("x");
  });
  expect("stop[0]", [](auto& p) { p.add_stop(std::string(kStopStringBytesMax + 1, 'x')); });
}

TEST(Refusals, PipelinesAndShards) {
  Rng rng(3);
  OpenPipeline open = std::get<OpenPipeline>(testing::RandomToWorker(rng, 4));
  while (open.hops.size() < 2) open = std::get<OpenPipeline>(testing::RandomToWorker(rng, 4));
  const auto pipeline = [&](const std::string& field, auto spoil) {
    SCOPED_TRACE(field);
    ExpectNames(Refusal(open, [&](auto& m) { spoil(*m.mutable_open_pipeline()); }), field);
  };
  pipeline("hops is missing", [](auto& m) { m.clear_hops(); });
  pipeline("hop must be", [](auto& m) { m.set_hop(static_cast<uint32_t>(m.hops_size())); });
  pipeline("rank must be", [](auto& m) { m.set_rank(8); });
  pipeline("layers must follow", [](auto& m) {
    m.mutable_hops(1)->mutable_layers()->set_end(40000);
    m.mutable_hops(1)->mutable_layers()->set_begin(30000);
  });
  pipeline("hops[0]: layers: begin",
           [](auto& m) { m.mutable_hops(0)->mutable_layers()->set_begin(999); });
  pipeline("layers: end",
           [](auto& m) { m.mutable_hops(0)->mutable_layers()->set_end(kLayersMax + 1); });
  pipeline("shards for", [](auto& m) { m.mutable_hops(0)->add_shards(1); });
  pipeline("ranks must be 1, 2, 4 or 8", [](auto& m) {
    m.mutable_hops(0)->clear_ranks();
    for (int i = 0; i < 3; ++i) m.mutable_hops(0)->add_ranks();
  });
  pipeline("block_size", [](auto& m) { m.set_block_size(0); });
  pipeline("num_blocks", [](auto& m) { m.set_num_blocks(~0u); });
  const auto here = open.hops[static_cast<size_t>(open.hop)].layers;
  pipeline("cache_activations_at", [&](auto& m) {
    m.clear_cache_activations_at();
    m.add_cache_activations_at(static_cast<uint32_t>(here.begin));
  });
  pipeline("cache_activations_at",
           [&](auto& m) { m.add_cache_activations_at(static_cast<uint32_t>(here.end + 1)); });
  pipeline("cache_activations_at", [&](auto& m) {
    m.clear_cache_activations_at();
    for (int i = 0; i < 2; ++i) m.add_cache_activations_at(static_cast<uint32_t>(here.end));
  });
  pipeline("control must be host:port",
           [](auto& m) { m.mutable_hops(0)->mutable_ranks(0)->set_control("nowhere"); });
  pipeline("control must be host:port",
           [](auto& m) { m.mutable_hops(0)->mutable_ranks(0)->set_control("host:65536"); });
  pipeline("host_id holds control",
           [](auto& m) { m.mutable_hops(0)->mutable_ranks(0)->set_host_id("a\nb"); });
  pipeline("host_id has", [](auto& m) {
    m.mutable_hops(0)->mutable_ranks(0)->set_host_id(std::string(kNameBytesMax + 1, 'x'));
  });

  const auto load = [&](const std::string& field, auto spoil) {
    SCOPED_TRACE(field);
    const LoadShard good{ShardId(1), 7, {0, 2}, {1, 2}, std::vector<WorkerAddress>(2), {}, "", 64};
    ExpectNames(Refusal(good, [&](auto& m) { spoil(*m.mutable_load_shard()); }), field);
  };
  load("rank: size must be 1, 2, 4 or 8", [](auto& m) { m.mutable_rank()->set_size(3); });
  load("rank: rank", [](auto& m) { m.mutable_rank()->set_rank(2); });
  load("ranks has 1 entries", [](auto& m) { m.mutable_ranks()->RemoveLast(); });
  load("layers", [](auto& m) { m.clear_layers(); });
  load("model_fingerprint",
       [](auto& m) { m.set_model_fingerprint(std::string(kNameBytesMax + 1, 'x')); });
}

TEST(Refusals, Transfers) {
  Rng rng(4);
  PullKv pull;
  while (pull.sources.empty()) pull = std::get<PullKv>(testing::RandomToWorker(rng, 9));
  pull.first_token = 0, pull.end_token = 10;
  const auto expect = [&](const std::string& field, auto spoil) {
    SCOPED_TRACE(field);
    ExpectNames(Refusal(pull, [&](auto& m) { spoil(*m.mutable_pull_kv()); }), field);
  };
  expect("first_token", [](auto& m) { m.set_first_token(11); });
  expect("end_token", [](auto& m) { m.set_end_token(~0u); });
  expect("sources[0]: handle: nonce must have 16",
         [](auto& m) { m.mutable_sources(0)->mutable_handle()->set_nonce("short"); });
  expect("blocks", [](auto& m) { m.add_blocks(~0u); });
  ExpectNames(Refusal(ExportKv{}, [](auto& m) { m.mutable_export_kv()->set_lease_ns(~0ull); }),
              "lease");
}

TEST(Refusals, ToController) {
  Join join;
  join.identity.kv_layout = "x";
  const auto expect = [&](const std::string& field, auto spoil) {
    SCOPED_TRACE(field);
    ExpectNames(Refusal(join, [&](auto& m) { spoil(*m.mutable_join()); }), field);
  };
  expect("join: identity is missing", [](auto& m) { m.clear_identity(); });
  expect("address is missing", [](auto& m) { m.clear_address(); });
  expect("name has 257 bytes", [](auto& m) { m.set_name(std::string(257, 'x')); });
  expect("name holds control", [](auto& m) { m.set_name("a\x1b[2J"); });
  expect("memory_bytes", [](auto& m) { m.set_memory_bytes(~0ull); });
  expect("machine: cores", [](auto& m) { m.mutable_machine()->set_cores(0); });
  expect("machine: cores", [](auto& m) { m.mutable_machine()->set_cores(1 << 20); });
  expect("machine: zone holds control", [](auto& m) { m.mutable_machine()->set_zone("a\nb"); });
  for (const double price : {-0.01, 10001.0, std::nan("")}) {
    expect("machine: price_usd_per_hour",
           [&](auto& m) { m.mutable_machine()->set_price_usd_per_hour(price); });
  }
  ExpectNames(
      Refusal(WorkerProfile{},
              [](auto& m) {
                m.mutable_worker_profile()->set_text(std::string(kProfileTextBytesMax + 1, ' '));
              }),
      "worker_profile: text");
  ExpectNames(Refusal(PipelineOpened{},
                      [](auto& m) { m.mutable_pipeline_opened()->mutable_status()->set_code(13); }),
              "status: code");
  ExpectNames(Refusal(PullDone{}, [](auto& m) { m.mutable_pull_done()->set_seconds(-1); }),
              "seconds");
  StepDone done;
  done.result.sequences.resize(2);
  done.result.sequences[1].logprobs.emplace();
  ExpectNames(Refusal(done,
                      [](auto& m) {
                        m.mutable_step_done()
                            ->mutable_result()
                            ->mutable_sequences(1)
                            ->mutable_logprobs()
                            ->add_rank(1);
                      }),
              "sequences[1]: logprobs");
}

TEST(Refusals, Probes) {
  ExpectNames(Refusal(ProbeLink{}, [](auto& m) { m.mutable_probe_link()->set_link(3); }), "link");
  ExpectNames(Refusal(ProbeLink{}, [](auto& m) { m.mutable_probe_link()->clear_from(); }), "from");
  Decoder decoder;
  const auto echo = [&](auto spoil) {
    proto::EchoMessage message;
    message.mutable_envelope();
    spoil(message);
    return decoder.DecodeEcho(Bytes(message.SerializeAsString())).status();
  };
  EXPECT_TRUE(echo([](auto& m) {
                m.mutable_echo()->set_content(std::string(kEchoBytesMax, 'x'));
                m.mutable_echo()->set_answer_bytes(kEchoBytesMax);
              }).ok());
  ExpectNames(
      echo([](auto& m) { m.mutable_echo()->set_content(std::string(kEchoBytesMax + 1, 'x')); }),
      "content");
  ExpectNames(echo([](auto& m) { m.mutable_echo()->set_answer_bytes(kEchoBytesMax + 1); }),
              "answer_bytes");
  ExpectNames(echo([](auto& m) { m.clear_echo(); }), "echo is missing");
}

TEST(Refusals, NotAMessage) {
  Decoder decoder;
  EXPECT_FALSE(decoder.DecodeToWorker({}).ok());
  EXPECT_FALSE(decoder.DecodeHeartbeat({}).ok());
  EXPECT_FALSE(decoder.DecodeEcho({}).ok());
  EXPECT_FALSE(decoder.DecodePeerMessage({}).ok());
  ExpectNames(decoder.DecodeToController(Bytes("\xff\xff\xff\xff\xff")).status(), "not a message");
  proto::ToController empty;
  empty.mutable_envelope();
  ExpectNames(decoder.DecodeToController(Bytes(empty.SerializeAsString())).status(),
              "message is missing");
  const std::vector<uint8_t> huge(kMessageBytesMax + 1);
  EXPECT_EQ(decoder.DecodeToController(huge).status().code(), StatusCode::kTooLarge);
}

TEST(Refusals, TooLargeToSend) {
  Encoder encoder;
  auto plan = std::make_shared<StepPlan>();
  for (int i = 0; i < 5; ++i) {
    plan->started.push_back({SequenceId(1), std::make_shared<SamplingParams>(), 5,
                             std::make_shared<std::vector<TokenId>>(5'000'000, 1 << 20), nullptr});
  }
  EXPECT_EQ(
      encoder.Encode({}, ToWorker(PipelineStep{PipelineId(1), std::move(plan)})).status().code(),
      StatusCode::kTooLarge);
  EXPECT_TRUE(encoder.Encode({}, ToWorker(ClosePipeline{})).ok()) << "and it continues";
}

}  // namespace
}  // namespace millrace::wire
