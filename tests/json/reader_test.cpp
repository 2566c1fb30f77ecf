// JSON that somebody else has written: every complaint says where something is wrong.
#include "json/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "core/record.h"

namespace headroom {
namespace {

using ::testing::EndsWith;
using ::testing::SizeIs;

std::string complaint(const std::function<void()>& work) {
  try {
    work();
  } catch (const JsonError& error) {
    return error.what();
  }
  return "none";
}

TEST(JsonReader, NamesThePathOfAWrongValue) {
  const auto json = parse_json(R"({"a": [{"b": 1}, {"b": "x"}]})", true);
  const JsonReader root(json, "file.json");
  EXPECT_EQ(complaint([&] { root.at("a").items()[1].at("b").number(); }),
            "file.json.a[1].b: expected a number, found \"x\"");
  EXPECT_EQ(complaint([&] { JsonReader(json).at("a").items()[0].at("c"); }), "a[0].c: missing");
  EXPECT_EQ(complaint([&] { JsonReader(json).at("a").at("b"); }),
            "a: expected an object, found [{\"b\":1},{\"b\":\"x\"}]");
}

TEST(JsonReader, TakesWholeNumbersOfTheRangeOnly) {
  const auto json = parse_json("[1, 1.5, -1, 9007199254740993, 18446744073709551615]", true);
  const std::vector<JsonReader> items = JsonReader(json).items();
  EXPECT_EQ(items[0].integer(1, 1), 1);
  for (std::size_t i = 1; i < items.size(); ++i)
    EXPECT_NE(complaint([&] { items[i].integer(0); }), "none") << i;
  EXPECT_EQ(complaint([&] { items[0].integer(2, 3); }), "[0]: expected a whole number, 2 to 3, found 1");
  EXPECT_EQ(items[4].seed(), 18446744073709551615u);
}

TEST(JsonReader, NamesEveryChoiceThatThereIs) {
  const auto json = parse_json(R"(["exact", "hot"])", true);
  const std::vector<JsonReader> items = JsonReader(json).items();
  const auto read = [](const JsonReader& item) {
    return item.one_of({Contract::kExact, Contract::kAutocast, Contract::kLibrary});
  };
  EXPECT_EQ(read(items[0]), Contract::kExact);
  EXPECT_EQ(complaint([&] { read(items[1]); }), "[1]: expected exact, autocast or library, found \"hot\"");
}

TEST(JsonReader, NullAndMissingAreAlikeWhereAFieldMayBeLeftOut) {
  const auto json = parse_json(R"({"null": null, "one": 1})", true);
  const JsonReader root(json);
  EXPECT_FALSE(root.find("null"));
  EXPECT_FALSE(root.find("nowhere"));
  EXPECT_EQ(root.find("one")->number(), 1);
}

TEST(ParseJson, RefusesKeysThatAreThereTwiceWhereThatIsAsked) {
  const std::string text = R"({"a": 1, "b": {"a": 2}, "a": 3})";
  EXPECT_EQ(complaint([&] { parse_json(text, true); }), "key 'a' is there twice in one object");
  EXPECT_EQ(parse_json(text, false)["a"], 3);
}

TEST(ParseJson, SaysOnWhichLineTextIsNoJson) {
  EXPECT_EQ(complaint([] { parse_json("{\n\"a\": ?}", true); }), "no JSON: something is wrong on line 2");
  EXPECT_EQ(complaint([] { parse_json("1e999", true); }), "no JSON: a number is out of range");
}

TEST(ShownValue, IsCutToItsLongest) {
  EXPECT_EQ(shown_value("ü"), "\"\\u00fc\"");
  EXPECT_THAT(shown_value(std::string(100, 'x')), SizeIs(40));
  EXPECT_THAT(shown_value(std::string(100, 'x')), EndsWith("xx..."));
}

}  // namespace
}  // namespace headroom
