// What the cache of compiled kernels keeps, and what it does not trust. The compiler is a stand-in here.
#include "jit/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "core/error.h"
#include "jit/digest.h"
#include "temporary.h"

namespace headroom::jit {
namespace {

namespace fs = std::filesystem;

/// Gives other bytes every time.
class CountingCompiler : public Compiler {
 public:
  explicit CountingCompiler(std::string identity = "counting 1") : identity_(std::move(identity)) {}
  const std::string& name() const override { return identity_; }
  const std::string& identity() const override { return identity_; }
  Cubin compile(const Request&, const Architecture&) const override {
    const std::string text = std::to_string(getpid()) + " " + std::to_string(++calls);
    Cubin cubin;
    cubin.bytes.assign(1 << 20, text.back());
    cubin.bytes.insert(cubin.bytes.end(), text.begin(), text.end());
    cubin.kernel = "_Z6kernelv";
    cubin.registers = 40;
    cubin.shared_bytes = 512;
    cubin.log = "two\nlines";
    return cubin;
  }
  mutable std::atomic<int> calls = 0;

 private:
  std::string identity_;
};

Request request_of(const std::string& name) {
  Request request;
  request.name = name;
  request.text = "__global__ void " + name + "() {}";
  request.kernel = name;
  return request;
}

class CubinCache : public testing::Test {
 protected:
  Cubin get(const Request& request) { return compile(request, {}, &compiler, Cache(folder)); }
  /// The one file that is kept.
  fs::path file() const {
    fs::path found;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) found = entry.path();
    return found;
  }

  TestFolder temporary;
  fs::path folder = temporary.path() / "compiled" / "cubins";
  CountingCompiler compiler;
};

TEST(Sha256, GivesTheDigestOfTheStandardsExample) {
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, OfTwoListsWithTheSameTextsTogetherDiffers) {
  Digest one, other;
  for (const char* text : {"ab", "c"}) one.add(text);
  for (const char* text : {"a", "bc"}) other.add(text);
  EXPECT_NE(one.hex(), other.hex());
}

TEST_F(CubinCache, GivesTheSecondTimeWhatTheFirstCompiled) {
  const Cubin first = get(request_of("a")), second = get(request_of("a"));
  EXPECT_FALSE(first.was_kept);
  EXPECT_TRUE(second.was_kept);
  EXPECT_EQ(compiler.calls, 1);
  EXPECT_EQ(second.bytes, first.bytes);
  EXPECT_EQ(second.kernel, "_Z6kernelv");
  EXPECT_EQ(second.registers, 40);
  EXPECT_EQ(second.shared_bytes, 512);
  EXPECT_EQ(second.log, "two\nlines");
  EXPECT_EQ(second.compiler, "counting 1");
}

TEST_F(CubinCache, ServesAMachineWithoutACompiler) {
  const Cubin first = get(request_of("a"));
  const Cubin found = compile(request_of("a"), {}, nullptr, Cache(folder));
  EXPECT_TRUE(found.was_kept);
  EXPECT_EQ(found.bytes, first.bytes);
  EXPECT_EQ(found.compiler, "counting 1");
  EXPECT_THROW(compile(request_of("b"), {}, nullptr, Cache(folder)), UnsupportedError);
}

TEST_F(CubinCache, KeepsAFolderForTheUserAlone) {
  get(request_of("a"));
  EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(file()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(CubinCache, CompilesAgainWhatAnythingAboutTheRequestHasChanged) {
  const Request request = request_of("a");
  const std::string key = key_of(request, {}, compiler);
  Request changed = request;
  changed.constants = {{"DEPTH", "4"}};
  EXPECT_NE(key_of(changed, {}, compiler), key);
  changed = request;
  changed.options = {"-Xptxas=-O1"};
  EXPECT_NE(key_of(changed, {}, compiler), key);
  changed = request;
  changed.headers = {"machine/wait.cuh"};
  EXPECT_NE(key_of(changed, {}, compiler), key);
  changed = request;
  changed.kernel = "b";
  EXPECT_NE(key_of(changed, {}, compiler), key);
  EXPECT_NE(key_of(request, {.major = 10, .minor = 0}, compiler), key);
  EXPECT_NE(key_of(request, {}, CountingCompiler("counting 2")), key);
}

TEST_F(CubinCache, MakesADamagedFileAgain) {
  get(request_of("a"));
  const std::string whole = read_file(file());
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{30}, std::size_t{90}, whole.size() / 2, whole.size() - 1}) {
    std::string damaged = whole;
    damaged[at] ^= 1;
    write_file(file(), damaged);
    EXPECT_FALSE(get(request_of("a")).was_kept) << "byte " << at;
    EXPECT_TRUE(get(request_of("a")).was_kept) << "byte " << at;
  }
}

TEST_F(CubinCache, MakesAFileThatWasCutOffAgain) {
  get(request_of("a"));
  const std::string whole = read_file(file());
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{10}, std::size_t{81}, std::size_t{82}, whole.size() - 1}) {
    write_file(file(), whole.substr(0, size));
    EXPECT_FALSE(get(request_of("a")).was_kept) << size << " bytes";
    EXPECT_TRUE(get(request_of("a")).was_kept) << size << " bytes";
  }
}

TEST_F(CubinCache, ReadsNoFileThroughALink) {
  get(request_of("a"));
  const fs::path place = file(), elsewhere = temporary.path() / "elsewhere";
  fs::rename(place, elsewhere);
  fs::create_symlink(elsewhere, place);
  EXPECT_FALSE(get(request_of("a")).was_kept);
  // The link was replaced, not followed.
  EXPECT_FALSE(fs::is_symlink(place));
  EXPECT_TRUE(get(request_of("a")).was_kept);
}

TEST_F(CubinCache, ReadsNoFifo) {
  get(request_of("a"));
  const fs::path place = file();
  fs::remove(place);
  ASSERT_EQ(mkfifo(place.c_str(), 0600), 0);
  EXPECT_FALSE(get(request_of("a")).was_kept);
}

TEST_F(CubinCache, IsNotUsedThroughALink) {
  const fs::path elsewhere = temporary.path() / "elsewhere";
  fs::create_directories(folder.parent_path());
  fs::create_directory(elsewhere);
  fs::create_directory_symlink(elsewhere, folder);
  get(request_of("a"));
  EXPECT_FALSE(get(request_of("a")).was_kept);
  EXPECT_TRUE(fs::is_empty(elsewhere));
  EXPECT_THAT(Cache(folder).refusal().value_or(""), testing::EndsWith("cubins is a link"));
}

TEST_F(CubinCache, IsNotUsedWhereOthersMayWrite) {
  get(request_of("a"));
  fs::permissions(folder, fs::perms::owner_all | fs::perms::others_write | fs::perms::others_exec);
  EXPECT_FALSE(get(request_of("a")).was_kept);
  EXPECT_THAT(Cache(folder).refusal().value_or(""), testing::EndsWith("may be written by others"));
}

TEST_F(CubinCache, TrustsNoFileThatOthersMayWrite) {
  get(request_of("a"));
  fs::permissions(file(), fs::perms::others_write, fs::perm_options::add);
  EXPECT_FALSE(get(request_of("a")).was_kept);
}

TEST_F(CubinCache, IsNotUsedWhereItIsAnotherUsers) {
  get(request_of("a"));
  if (chown(folder.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "only root gives a folder away";
  EXPECT_FALSE(get(request_of("a")).was_kept);
  EXPECT_THAT(Cache(folder).refusal().value_or(""), testing::EndsWith("is another user's"));
}

TEST_F(CubinCache, TrustsNoFileOfAnotherUser) {
  get(request_of("a"));
  if (chown(file().c_str(), 12345, 12345) != 0) GTEST_SKIP() << "only root gives a file away";
  EXPECT_FALSE(get(request_of("a")).was_kept);
}

TEST_F(CubinCache, ThatCannotBeWrittenIsNoFailure) {
  write_file(temporary.path() / "file", "");
  folder = temporary.path() / "file" / "cubins";
  EXPECT_EQ(get(request_of("a")).kernel, "_Z6kernelv");
  EXPECT_FALSE(get(request_of("a")).was_kept);
  folder.clear();
  EXPECT_FALSE(get(request_of("a")).was_kept);
}

TEST_F(CubinCache, ThatIsReadOnlyIsReadAndNoFailure) {
  get(request_of("a"));
  fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_TRUE(get(request_of("a")).was_kept);
  EXPECT_EQ(get(request_of("b")).kernel, "_Z6kernelv");  // root writes there all the same
  fs::permissions(folder, fs::perms::owner_all);
}

TEST_F(CubinCache, HoldsWholeFilesAfterFourProcessesAtOnce) {
  constexpr int kProcesses = 4, kRounds = 8;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = fork();
    if (child == 0) {
      const Cache cache(folder);
      int wrong = 0;
      for (int round = 0; round < kRounds; ++round) {
        const Request request = request_of("kernel" + std::to_string(round % 2));
        // What another one has just written, or what is kept now: whole in any case, or it would not be found.
        wrong += !cache.keep(key_of(request, {}, compiler), compiler.compile(request, {}));
        const std::optional<Cubin> found = cache.find(key_of(request, {}, compiler));
        wrong += !found || found->bytes.size() <= (1 << 20);
      }
      _exit(wrong);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  int files = 0;
  for ([[maybe_unused]] const fs::directory_entry& entry : fs::directory_iterator(folder)) ++files;
  EXPECT_EQ(files, 2);
}

TEST_F(CubinCache, RemovesWhatAKilledProcessLeftAnHourAgo) {
  get(request_of("a"));
  const fs::path old = folder / ".unfinished-1-0", young = folder / ".unfinished-1-1";
  for (const fs::path& path : {old, young}) write_file(path, "part");
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(2));
  get(request_of("b"));
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(young));
}

}  // namespace
}  // namespace headroom::jit
