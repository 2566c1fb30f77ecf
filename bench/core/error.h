// The kinds of failure that the program tells apart.
//
// A user's mistake ends the program with exit code 2 before anything is measured; a machine's failure costs one
// record and the run goes on. Whatever is not one of these is a defect of the program.
#pragma once

#include <stdexcept>
#include <string>

namespace headroom {

/// Wrong usage or bad input. The message is one line: where it is, what is wrong, what would be right.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What the program was to write cannot be written: a full disk, a closed standard output. Ends the program with exit
/// code 2, since what was asked for is not there. The message: where, and the system's reason.
class OutputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// This machine, build or backend cannot do what was asked (no GPU, shape does not fit, precision not there).
/// Becomes a skipped record with the message as its reason.
class UnsupportedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The device or host ran out of memory. Becomes a failed record; the run goes on.
class OutOfMemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The device goes on with work that nobody can end: only the end of the process gives the device back. A worker answers
/// the call at hand with the message, as a failure, and ends without waiting for the device.
class DeviceStuckError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace headroom
