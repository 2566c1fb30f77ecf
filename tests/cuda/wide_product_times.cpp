// Prints the time of each wide product of a layer, in microseconds: `wide_product_times [BATCH OUT IN]...`.
//
// For work on the kernel only. Inputs are random: a GPU that multiplies zeros draws less power and runs faster.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/memory.h"
#include "device/stream.h"
#include "layered/wide.h"

namespace headroom::layered {
namespace {

template <class Format>
DeviceBuffer<typename Format::Value> random_values(std::int64_t count, float scale) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, scale);
  std::vector<typename Format::Value> values(1 << 20);
  for (auto& value : values) value = Format::round(normal(random));
  std::vector<typename Format::Value> all(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = values[i * 2654435761u % values.size()];
  DeviceBuffer<typename Format::Value> buffer(count);
  buffer.copy_from(all);
  return buffer;
}

/// Median of seven graphs of 20.
template <class Product>
double microseconds(const Product& queue, Stream& stream) {
  constexpr int kTimes = 20;
  Graph graph = Graph::capture(stream, [&] {
    for (int i = 0; i < kTimes; ++i) queue();
  });
  std::vector<double> samples;
  for (int block = 0; block < 8; ++block) {
    Event begin, end;
    begin.record(stream);
    graph.launch(stream);
    end.record(stream);
    if (block > 0) samples.push_back(1e6 * seconds_between(begin, end) / kTimes);
    stream.synchronize();
  }
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

template <class Format>
void print_times(std::int64_t batch, std::int64_t out, std::int64_t in) {
  Stream stream;
  const auto x = random_values<Format>(batch * padded(in), 1),
             d = random_values<Format>(batch * padded(out), 1);
  auto w = random_values<Format>(out * padded(in), 0.03f);
  DeviceBuffer<typename Format::Value> hidden(batch * padded(out)), dx(batch * padded(in));
  DeviceBuffer<float> bias(padded(out)), masters(out * padded(in));
  bias.fill_bytes(0), masters.fill_bytes(0);
  DeviceBuffer<std::uint32_t> positive(std::max(positive_words(batch, out), positive_words(batch, in)));
  positive.fill_bytes(0x55);
  const int parts = wide_gradient_parts(batch, out, in);
  DeviceBuffer<float> workspace(WideWeightUpdate<Format>::workspace_values(batch, out, in, parts));
  using Value = typename Format::Value;
  const auto inputs = matrix<const Value>(x.data(), batch, in),
             gradient = matrix<const Value>(d.data(), batch, out),
             weights = matrix<const Value>(w.data(), out, in);
  const double operations =
      2e-6 * static_cast<double>(batch) * static_cast<double>(out) * static_cast<double>(in);
  const auto print = [&](const char* what, double time) {
    std::printf("%s batch %lld, out %lld, in %lld: %-15s %9.2f us  %6.1f TFLOP/s\n",
                std::string(to_string(Format::kPrecision)).c_str(), static_cast<long long>(batch),
                static_cast<long long>(out), static_cast<long long>(in), what, time, operations / time);
    std::fflush(stdout);
  };
  const WideForward<Format> forward(inputs, nullptr, weights, bias.data(), matrix(hidden.data(), batch, out),
                                    positive.data());
  print("forward", microseconds([&] { forward.queue(stream); }, stream));
  const WideInputGradient<Format> input_gradient(gradient, weights, positive.data(),
                                                 matrix(dx.data(), batch, in));
  print("input gradient", microseconds([&] { input_gradient.queue(stream); }, stream));
  // A rate of zero: the weights stay what they are, and everything is done all the same.
  const WideWeightUpdate<Format> update(gradient, inputs, nullptr, matrix(masters.data(), out, in),
                                        matrix(w.data(), out, in), bias.data(), 0.0f, 1.0f, parts,
                                        workspace.data());
  print(parts == 1 ? "update" : "update in parts",
        microseconds([&] { update.queue_product(stream), update.queue_update(stream); }, stream));
}

}  // namespace
}  // namespace headroom::layered

int main(int argc, char** argv) {
  try {
    headroom::use_device(0);
    std::vector<long long> sizes;
    for (int i = 1; i < argc; ++i) sizes.push_back(std::atoll(argv[i]));
    if (sizes.empty()) sizes = {16384, 1024, 784, 16384, 1024, 1024, 16384, 4096, 784, 16384, 4096, 4096};
    for (std::size_t i = 0; i + 2 < sizes.size(); i += 3) {
      headroom::layered::print_times<headroom::layered::Fp16>(sizes[i], sizes[i + 1], sizes[i + 2]);
      headroom::layered::print_times<headroom::layered::Bf16>(sizes[i], sizes[i + 1], sizes[i + 2]);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "wide_product_times: %s\n", error.what());
    return 1;
  }
}
