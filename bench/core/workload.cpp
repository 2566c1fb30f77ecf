// Workload names, limits and sizes.
#include "core/workload.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "core/error.h"
#include "core/names.h"
#include "core/optimizer_numbers.h"

namespace headroom {
namespace {

constexpr std::string_view kRightName = "mlp-784x128x10-b32";

// A positive decimal number without sign or leading zero, as default_name() writes it.
std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.front() == '-') return std::nullopt;
  if (text.front() == '0' && text.size() > 1) return std::nullopt;
  return value;
}

constexpr std::string_view kMomentum = "momentum";

/// As few digits as give the same value again.
std::string shortest(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

InputError bad_name(std::string_view name, const std::string& why) {
  return InputError("workload '" + std::string(name) + "': " + why + "; a right name is " +
                    std::string(kRightName) + " (input width, hidden widths, outputs, batch size)");
}

template <class Kind, std::size_t kCount>
std::optional<Kind> find_kind(const std::array<Kind, kCount>& kinds, std::string_view name) {
  for (const Kind kind : kinds)
    if (to_string(kind) == name) return kind;
  return std::nullopt;
}

template <class Kind, std::size_t kCount>
Kind parse_kind(const std::array<Kind, kCount>& kinds, std::string_view what, std::string_view name) {
  if (const std::optional<Kind> kind = find_kind(kinds, name)) return *kind;
  std::vector<std::string> names;
  std::string all;
  for (const Kind kind : kinds) {
    names.emplace_back(to_string(kind));
    all += (all.empty() ? "" : ", ") + names.back();
  }
  throw InputError(std::string(what) + " '" + std::string(name) + "': did you mean '" +
                   nearest_name(name, names) + "'? There are " + all);
}

/// The N of a part "gN"; nullopt for another part, such as "gelu".
std::optional<int> devices_of(std::string_view part) {
  if (part.size() < 2 || part.front() != 'g') return std::nullopt;
  return parse_number(part.substr(1));
}

/// What stands behind the batch size in a workload's name.
void take_part(std::string_view name, std::string_view part, Workload& workload) {
  if (const auto activation = find_kind(kAllActivations, part)) {
    workload.model.activation = *activation;
  } else if (const auto loss = find_kind(kAllLosses, part)) {
    workload.loss = *loss;
  } else if (const auto optimizer = find_kind(kAllOptimizers, part)) {
    workload.optimizer.kind = *optimizer;
  } else if (part.substr(0, kMomentum.size()) == kMomentum) {
    const std::string_view text = part.substr(kMomentum.size());
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), workload.optimizer.momentum);
    if (error != std::errc() || end != text.data() + text.size())
      throw bad_name(name, "'" + std::string(text) + "' is not a momentum");
  } else if (const auto devices = devices_of(part)) {
    if (*devices < 2)
      throw bad_name(name,
                     "'" + std::string(part) +
                         "' is no number of devices: -g2 trains on two, and on one there is no such part");
    workload.devices = *devices;
  } else {
    std::vector<std::string> known = {std::string(kMomentum) + "0.9"};
    for (const Activation one : kAllActivations) known.emplace_back(to_string(one));
    for (const Loss one : kAllLosses) known.emplace_back(to_string(one));
    for (const Optimizer::Kind one : kAllOptimizers) known.emplace_back(to_string(one));
    known.emplace_back("g2");
    throw bad_name(name, "'" + std::string(part) +
                             "' is no activation, loss, optimizer or number of devices (did you mean '" +
                             nearest_name(part, known) + "'?)");
  }
}

}  // namespace

std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return "fp32";
    case Precision::kTf32:
      return "tf32";
    case Precision::kFp16:
      return "fp16";
    case Precision::kBf16:
      return "bf16";
  }
  throw std::logic_error("to_string: not a Precision");
}

Precision parse_precision(std::string_view name) {
  std::vector<std::string> names;
  for (Precision precision : kAllPrecisions) {
    if (to_string(precision) == name) return precision;
    names.emplace_back(to_string(precision));
  }
  throw InputError("precision '" + std::string(name) + "': did you mean '" + nearest_name(name, names) +
                   "'? The precisions are fp32, tf32, fp16 and bf16");
}

std::string_view to_string(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return "relu";
    case Activation::kTanh:
      return "tanh";
    case Activation::kSilu:
      return "silu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kElu:
      return "elu";
  }
  throw std::logic_error("to_string: not an Activation");
}

std::string_view to_string(Loss loss) {
  switch (loss) {
    case Loss::kCrossEntropy:
      return "cross-entropy";
    case Loss::kMeanSquaredError:
      return "mse";
    case Loss::kBinaryCrossEntropy:
      return "bce";
  }
  throw std::logic_error("to_string: not a Loss");
}

std::string_view to_string(Optimizer::Kind kind) {
  switch (kind) {
    case Optimizer::Kind::kSgd:
      return "sgd";
    case Optimizer::Kind::kAdam:
      return "adam";
    case Optimizer::Kind::kAdamW:
      return "adamw";
  }
  throw std::logic_error("to_string: not an Optimizer::Kind");
}

std::vector<std::string> slot_names(const Optimizer& optimizer) {
  if (optimizer.kind != Optimizer::Kind::kSgd) return {"exp_avg", "exp_avg_sq"};
  return optimizer.momentum != 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
}

double* optimizer_number(Optimizer& optimizer, std::string_view name) {
  const bool is_sgd = optimizer.kind == Optimizer::Kind::kSgd;
  if (name == "learning_rate") return &optimizer.learning_rate;
  if (name == "momentum") return is_sgd ? &optimizer.momentum : nullptr;
  if (name == "weight_decay")
    return optimizer.kind == Optimizer::Kind::kAdamW ? &optimizer.weight_decay : nullptr;
  if (is_sgd) return nullptr;
  return name == "beta1"     ? &optimizer.beta1
         : name == "beta2"   ? &optimizer.beta2
         : name == "epsilon" ? &optimizer.epsilon
                             : nullptr;
}
const double* optimizer_number(const Optimizer& optimizer, std::string_view name) {
  return optimizer_number(const_cast<Optimizer&>(optimizer), name);
}

Activation parse_activation(std::string_view name) { return parse_kind(kAllActivations, "activation", name); }
Loss parse_loss(std::string_view name) { return parse_kind(kAllLosses, "loss", name); }
Optimizer::Kind parse_optimizer(std::string_view name) {
  return parse_kind(kAllOptimizers, "optimizer", name);
}

double loss_scale(Precision precision, int batch_size) {
  if (precision != Precision::kFp16) return 1;
  return 16.0 * static_cast<double>(std::bit_ceil(static_cast<unsigned>(batch_size)));
}

std::int64_t Workload::parameter_count() const {
  std::int64_t count = 0;
  for (int layer = 0; layer < layers(); ++layer) {
    count += (std::int64_t{model.widths[layer]} + 1) * model.widths[layer + 1];
  }
  return count;
}

Workload Workload::joined() const {
  Workload one = *this;
  one.batch_size = joined_batch_size();
  one.devices = 1;
  return one;
}

Workload Workload::of_a_rank() const {
  Workload one = *this;
  one.devices = 1;
  return one;
}

double Workload::flops_per_step() const {
  double operations = 0;
  for (int layer = 0; layer < layers(); ++layer) {
    const double product = 2.0 * joined_batch_size() * model.widths[layer] * model.widths[layer + 1];
    operations += product * (layer == 0 ? 2 : 3);
  }
  return operations;
}

std::string default_name(const Workload& workload) {
  std::string name = "mlp-";
  const std::vector<int>& widths = workload.model.widths;
  for (std::size_t i = 0; i < widths.size(); ++i) name += (i > 0 ? "x" : "") + std::to_string(widths[i]);
  name += "-b" + std::to_string(workload.batch_size);
  const auto add = [&name](std::string_view part) { (name += '-') += part; };
  if (workload.model.activation != Activation::kRelu) add(to_string(workload.model.activation));
  if (workload.loss != Loss::kCrossEntropy) add(to_string(workload.loss));
  if (workload.optimizer.kind != Optimizer::Kind::kSgd)
    add(to_string(workload.optimizer.kind));
  else if (workload.optimizer.momentum != 0)
    add(std::string(kMomentum) + shortest(workload.optimizer.momentum));
  if (workload.devices != 1) add("g" + std::to_string(workload.devices));
  return name;
}

Workload parse_workload_name(std::string_view name) {
  constexpr std::string_view kPrefix = "mlp-";
  if (name.substr(0, kPrefix.size()) != kPrefix) throw bad_name(name, "does not begin with 'mlp-'");
  std::vector<std::string_view> parts;
  for (std::string_view rest = name.substr(kPrefix.size());;) {
    const std::size_t dash = rest.find('-');
    parts.push_back(rest.substr(0, dash));
    if (dash == std::string_view::npos) break;
    rest.remove_prefix(dash + 1);
  }
  if (parts.size() < 2 || parts[1].substr(0, 1) != "b") throw bad_name(name, "has no batch size '-bN'");

  Workload workload;
  workload.name = std::string(name);
  const std::string_view batch = parts[1].substr(1);
  const std::optional<int> batch_size = batch.empty() ? std::nullopt : parse_number(batch);
  if (!batch_size) throw bad_name(name, "'" + std::string(batch) + "' is not a batch size");
  workload.batch_size = *batch_size;

  std::string_view widths = parts[0];
  for (bool more = true; more;) {
    const std::size_t cross = widths.find('x');
    const std::string_view text = widths.substr(0, cross);
    const std::optional<int> width = text.empty() ? std::nullopt : parse_number(text);
    if (!width) throw bad_name(name, "'" + std::string(text) + "' is not a width");
    workload.model.widths.push_back(*width);
    more = cross != std::string_view::npos;
    if (more) widths.remove_prefix(cross + 1);
  }
  for (std::size_t i = 2; i < parts.size(); ++i) take_part(name, parts[i], workload);
  if (const std::string right = default_name(workload); right != name)
    throw InputError("workload '" + std::string(name) + "': written as '" + right +
                     "': activation, loss, optimizer, devices, in this order, without defaults");
  validate(workload);
  return workload;
}

void validate(const Workload& workload) {
  const int layers = workload.layers();
  if (layers < 1 || layers > kMaxLayers) {
    throw bad_name(workload.name, "has " + std::to_string(std::max(layers, 0)) + " layers, must have 1 to " +
                                      std::to_string(kMaxLayers));
  }
  for (int width : workload.model.widths) {
    if (width < 1 || width > kMaxWidth) {
      throw bad_name(workload.name,
                     "width " + std::to_string(width) + " is not between 1 and " + std::to_string(kMaxWidth));
    }
  }
  if (workload.batch_size < 1) {
    throw bad_name(workload.name, "batch size " + std::to_string(workload.batch_size) + " is not 1 or more");
  }
  if (workload.devices < 1 || workload.devices > kMaxDevices) {
    throw bad_name(workload.name,
                   std::to_string(workload.devices) + " devices are not 1 to " + std::to_string(kMaxDevices));
  }
  if (workload.batch_size > std::numeric_limits<int>::max() / workload.devices) {
    throw bad_name(workload.name, "the joined batch of " + std::to_string(workload.devices) +
                                      " devices is over " + std::to_string(std::numeric_limits<int>::max()) +
                                      " samples");
  }
  const Optimizer& optimizer = workload.optimizer;
  const auto require = [&workload](bool right, const char* what, double value, const char* expected) {
    if (!right)
      throw InputError("workload '" + workload.name + "': " + what + " " + shortest(value) + " is not " +
                       expected);
  };
  const auto is_positive = [](double value) { return std::isfinite(value) && value > 0; };
  const auto is_share = [](double value) { return value >= 0 && value < 1; };
  require(is_positive(optimizer.learning_rate), "learning rate", optimizer.learning_rate,
          "a positive number, such as 0.003");
  require(is_share(optimizer.momentum), "momentum", optimizer.momentum, "from 0 to below 1, such as 0.9");
  require(is_share(optimizer.beta1), "beta1", optimizer.beta1, "from 0 to below 1, such as 0.9");
  require(is_share(optimizer.beta2), "beta2", optimizer.beta2, "from 0 to below 1, such as 0.999");
  require(is_positive(optimizer.epsilon), "epsilon", optimizer.epsilon, "a positive number, such as 1e-8");
  require(std::isfinite(optimizer.weight_decay) && optimizer.weight_decay >= 0, "weight decay",
          optimizer.weight_decay, "0 or more, such as 0.01");
  require(optimizer.kind == Optimizer::Kind::kSgd || optimizer.momentum == 0, "momentum", optimizer.momentum,
          "for adam or adamw: it is sgd's");
}

std::string trains_on_fewer(int max_devices) {
  return max_devices == 1 ? "trains on one device"
                          : "trains on at most " + std::to_string(max_devices) + " devices";
}

std::string beyond_plain_training(const Workload& workload) {
  if (workload.model.activation != Activation::kRelu)
    return "activation " + std::string(to_string(workload.model.activation)) + "; it trains relu";
  if (workload.loss != Loss::kCrossEntropy)
    return "loss " + std::string(to_string(workload.loss)) + "; it trains cross-entropy";
  if (workload.optimizer.kind != Optimizer::Kind::kSgd)
    return "optimizer " + std::string(to_string(workload.optimizer.kind)) + "; it trains sgd";
  if (workload.optimizer.momentum != 0) return "momentum; it trains plain sgd";
  return {};
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  std::string nearest;
  std::size_t nearest_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (nearest.empty() || distance < nearest_distance) {
      nearest = candidate;
      nearest_distance = distance;
    }
  }
  return nearest;
}

}  // namespace headroom
