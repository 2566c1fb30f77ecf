#!/bin/sh
# A compiler launcher: fails the compilation if ptxas says that it serialises the products of a warpgroup (C7510 to
# C7515, which it calls information), or that it ignores setmaxnreg (C7507, C7508). Before the compiler may stand the
# next launcher.
messages=$("$@" 2>&1)
status=$?
[ -z "$messages" ] || printf '%s\n' "$messages" >&2
case $messages in
  *"'setmaxnreg' ignored"* | *"instructions are serialized"*) exit 1 ;;
esac
exit "$status"
