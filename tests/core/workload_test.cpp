// Names, limits and sizes of workloads.
#include "core/workload.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace headroom {
namespace {

std::string message_of(const std::string& name) {
  try {
    parse_workload_name(name);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Workload, NameReadsBack) {
  for (const std::string name : {"mlp-784x128x128x128x10-b32", "mlp-1x1-b1", "mlp-65536x7x65536-b1048576"}) {
    const Workload workload = parse_workload_name(name);
    EXPECT_EQ(default_name(workload.widths, workload.batch_size), name);
    EXPECT_EQ(workload.name, name);
  }
  EXPECT_EQ(parse_workload_name("mlp-784x300x10-b64").widths, (std::vector<int>{784, 300, 10}));
}

TEST(Workload, MalformedNamesAreRefusedInOneLineThatShowsARightOne) {
  for (const std::string name :
       {"", "mlp", "mlp-", "784x10-b32", "mlp-784x10", "mlp-784x10-b", "mlp-784x10-b0", "mlp-784x10-b-3",
        "mlp-784x0x10-b32", "mlp-784x-5x10-b32", "mlp-784-b32", "mlp-784xx10-b32", "mlp-784x10x-b32",
        "mlp-784x65537x10-b32", "mlp-784x10-b32x", "mlp-784x10-b99999999999", "mlp- 784x10-b32",
        "mlp-0784x10-b32", "mlp-1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1-b1"}) {
    const std::string message = message_of(name);
    EXPECT_NE(message.find("'" + name + "'"), std::string::npos) << message;
    EXPECT_NE(message.find("mlp-784x128x10-b32"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(Workload, LearningRateMustBePositiveAndFinite) {
  Workload workload = parse_workload_name("mlp-784x10-b32");
  for (double learning_rate : {0.0, -0.1, std::nan(""), HUGE_VAL}) {
    workload.optimizer.learning_rate = learning_rate;
    EXPECT_THROW(validate(workload), InputError) << learning_rate;
  }
}

TEST(Workload, CountsParametersAndOperations) {
  const Workload workload = parse_workload_name("mlp-784x128x10-b32");
  EXPECT_EQ(workload.parameter_count(), 784 * 128 + 128 + 128 * 10 + 10);
  EXPECT_EQ(workload.flops_per_step(), 2.0 * 32 * (2 * 784 * 128 + 3 * 128 * 10));
  EXPECT_EQ(parse_workload_name("mlp-65536x65536-b1").parameter_count(), 65536LL * 65537);
}

TEST(Precision, ReadsBackAndNamesTheNearest) {
  for (Precision precision : kAllPrecisions) EXPECT_EQ(parse_precision(to_string(precision)), precision);
  try {
    parse_precision("pf16");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'bf16'"), std::string::npos) << error.what();
  }
}

TEST(NearestName, HasTheSmallestEditDistance) {
  EXPECT_EQ(nearest_name("libtorch-eagr", {"pytorch-eager", "libtorch-eager", "oracle"}), "libtorch-eager");
  EXPECT_EQ(nearest_name("sed", {"quick", "seed"}), "seed");
  EXPECT_EQ(nearest_name("anything", {}), "");
}

}  // namespace
}  // namespace headroom
