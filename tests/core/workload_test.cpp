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
    EXPECT_EQ(default_name(workload), name);
    EXPECT_EQ(workload.name, name);
  }
  EXPECT_EQ(parse_workload_name("mlp-784x300x10-b64").model.widths, (std::vector<int>{784, 300, 10}));
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

TEST(Workload, NameSaysWhatIsNoDefault) {
  for (const std::string name :
       {"mlp-17x64x64x6-b64-tanh-mse-adam", "mlp-8x4-b2-momentum0.9", "mlp-8x4-b2-gelu-bce-adamw",
        "mlp-8x4x2-b2-silu", "mlp-8x4x2-b2-adam", "mlp-8x4x2-b2-elu-momentum0.5"})
    EXPECT_EQ(default_name(parse_workload_name(name)), name);
  const Workload workload = parse_workload_name("mlp-17x64x64x6-b64-tanh-mse-adam");
  EXPECT_EQ(workload.model, (Model{{17, 64, 64, 6}, Activation::kTanh}));
  EXPECT_EQ(workload.loss, Loss::kMeanSquaredError);
  EXPECT_EQ(workload.optimizer.kind, Optimizer::Kind::kAdam);
  EXPECT_EQ(workload.optimizer.slots(), 2);
  EXPECT_EQ(parse_workload_name("mlp-8x4-b2-momentum0.9").optimizer.slots(), 1);
  EXPECT_EQ(parse_workload_name("mlp-8x4-b2").optimizer.slots(), 0);
}

TEST(Workload, APartOfANameThatIsNotKnownShowsTheNearestOne) {
  EXPECT_NE(message_of("mlp-8x4-b2-tahn").find("'tanh'"), std::string::npos) << message_of("mlp-8x4-b2-tahn");
  EXPECT_NE(message_of("mlp-8x4-b2-adamv").find("'adam"), std::string::npos);
  EXPECT_NE(message_of("mlp-8x4-b2-momentum1").find("from 0 to below 1"), std::string::npos);
  EXPECT_NE(message_of("mlp-8x4-b2-momentumx").find("'x' is not a momentum"), std::string::npos);
  // One name for one workload: defaults left out, activation, loss, optimizer.
  for (const std::string name : {"mlp-8x4-b2-adam-tanh", "mlp-8x4-b2-relu", "mlp-8x4-b2-sgd",
                                 "mlp-8x4-b2-tanh-tanh", "mlp-8x4-b2-momentum0.90"})
    EXPECT_NE(message_of(name).find("written as 'mlp-8x4-b2"), std::string::npos) << message_of(name);
}

TEST(Workload, ANameEndsInItsDevicesWhereThereAreSeveral) {
  for (const std::string name : {"mlp-784x128x10-b32-g2", "mlp-17x64x64x6-b64-tanh-mse-adam-g8",
                                 "mlp-8x4x2-b2-gelu-momentum0.5-g3", "mlp-8x4-b2-g64"})
    EXPECT_EQ(default_name(parse_workload_name(name)), name);
  EXPECT_EQ(parse_workload_name("mlp-784x128x10-b32-g2").devices, 2);
  EXPECT_EQ(parse_workload_name("mlp-784x128x10-b32").devices, 1);
  for (const std::string name : {"mlp-8x4-b2-g0", "mlp-8x4-b2-g1"})
    EXPECT_NE(message_of(name).find("-g2 trains on two, and on one there is no such part"), std::string::npos)
        << message_of(name);
  EXPECT_NE(message_of("mlp-8x4-b2-g2-adam").find("written as 'mlp-8x4-b2-adam-g2'"), std::string::npos);
  EXPECT_NE(message_of("mlp-8x4-b2-g65").find("65 devices are not 1 to 64"), std::string::npos);
  EXPECT_NE(message_of("mlp-8x4-b2-g02").find("no activation, loss, optimizer or number of devices"),
            std::string::npos);
  EXPECT_NE(message_of("mlp-8x4-b2147483647-g2").find("joined batch"), std::string::npos);
}

TEST(Workload, JoinedIsOneDeviceWithTheBatchesOfAll) {
  const Workload workload = parse_workload_name("mlp-784x128x10-b32-g4");
  const Workload joined = workload.joined();
  EXPECT_EQ(joined.batch_size, 128);
  EXPECT_EQ(joined.devices, 1);
  EXPECT_EQ(joined.name, workload.name);
  EXPECT_EQ(workload.joined_batch_size(), 128);
  EXPECT_EQ(workload.of_a_rank().batch_size, 32);
  EXPECT_EQ(workload.of_a_rank().devices, 1);
  EXPECT_EQ(workload.flops_per_step(), joined.flops_per_step());
}

TEST(Workload, NumbersOfTheOptimizerMustBeInTheirRanges) {
  const auto refused = [](double Optimizer::* number, double value, Optimizer::Kind kind) {
    Workload workload = parse_workload_name("mlp-784x10-b32");
    workload.optimizer.kind = kind;
    workload.optimizer.*number = value;
    EXPECT_THROW(validate(workload), InputError) << value;
  };
  refused(&Optimizer::beta1, 1, Optimizer::Kind::kAdam);
  refused(&Optimizer::beta2, 1, Optimizer::Kind::kAdamW);
  refused(&Optimizer::beta2, std::nan(""), Optimizer::Kind::kAdam);
  refused(&Optimizer::momentum, -0.1, Optimizer::Kind::kSgd);
  refused(&Optimizer::momentum, 0.9, Optimizer::Kind::kAdam);
  refused(&Optimizer::epsilon, 0, Optimizer::Kind::kAdam);
  refused(&Optimizer::weight_decay, -1, Optimizer::Kind::kAdamW);
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
