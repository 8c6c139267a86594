#include "plan/spot/testing.h"

#include "base/file.h"
#include "base/testing/source_path.h"

namespace millrace::plan::spot {

std::string ProfileText(const std::string& model) {
  auto text = ReadFile(
      SourcePath("src/plan/spot/testdata/T4-4x_megatron_") + model + "_profile.json", 1 << 20);
  MR_CHECK(text.ok()) << text.status().ToString();
  return *text;
}

Profile PublishedProfile(const std::string& model) {
  auto profile = ParseProfile(ProfileText(model));
  MR_CHECK(profile.ok()) << profile.status().ToString();
  return *profile;
}

Profile RandomProfile(Rng& rng) {
  Profile p;
  p.layers = static_cast<int>(rng.Between(1, 60));
  p.padded_layers = p.layers + static_cast<int>(rng.Between(0, 6));
  p.hidden_size = 1024;
  p.tensor_max = 1 << rng.Between(0, 4);
  p.overhead_factor = 1 + rng.Uniform();
  p.stage_prefill_ms = rng.Uniform() * 10;
  p.stage_decode_ms = rng.Uniform();
  for (int i = 0; i < 4; ++i) p.embed_ms.push_back(rng.Uniform());
  for (int tensor = 1; tensor <= 16; tensor *= 2) {
    for (int batch = 1; batch <= 8; batch *= 2) {
      if (rng.Uniform() < 0.1) continue;  // this cell was not measured
      p.Set(tensor, batch, {1 + 200 * rng.Uniform(), 0.5 + 10 * rng.Uniform()});
    }
  }
  return p;
}

}  // namespace millrace::plan::spot
