// What is a name, and what a terminal may be shown.
#include "core/names.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"

namespace headroom {
namespace {

TEST(Names, AreWordsThatCanBePartOfAFilesName) {
  const std::vector<std::string> names = {"a", "cuda-layered",       "mlp-784x128x10-b32", "v1.2_x",
                                          "_", std::string(128, 'x')};
  for (const std::string& name : names) EXPECT_TRUE(is_name(name)) << name;
  const std::vector<std::string> others = {"",
                                           ".",
                                           "..",
                                           ".hidden",
                                           "-all",
                                           "a/b",
                                           "/a",
                                           "a b",
                                           "a,b",
                                           "a\n",
                                           "\x1b[31m",
                                           "\xc3\xbc",
                                           "a\\b",
                                           "a:b",
                                           std::string(129, 'x'),
                                           std::string("a\0b", 3)};
  for (const std::string& other : others) EXPECT_FALSE(is_name(other)) << other;
}

TEST(Names, OfAnotherKindAreRefusedWithTheRule) {
  EXPECT_NO_THROW(check_name("--worker", "mine"));
  try {
    check_name("--worker", "../mine");
    FAIL() << "nothing was thrown";
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()), std::string("--worker '../mine': expected ") + kNameRule);
  }
}

TEST(Printable, HasNoControlCharactersButTheEndOfALine) {
  EXPECT_EQ(printable("a\nb\tc\rd\x1b[31m\x7f\x07"), "a\nb c d [31m  ");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J\xc2\x80|\xc2\x9f|"),
            " 2J | |");  // U+009B, U+0080, U+009F
}

TEST(Printable, KeepsOtherCharactersAndShowsWhatIsNone) {
  const std::string text = "\xc2\xa0\xc3\xbc\xe2\x82\xac\xf0\x9f\x9a\x80";  // up to four bytes
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable("\x9b"
                      "2J\xff\xc3"),
            "?2J??");
  EXPECT_EQ(printable("\xc0\x9b|\xe0\x82\x9b|\xed\xa0\x80|\xf4\x90\x80\x80"), "??|???|???|????");
  EXPECT_EQ(printable("\xe2\x82"), "??");
}

}  // namespace
}  // namespace headroom
