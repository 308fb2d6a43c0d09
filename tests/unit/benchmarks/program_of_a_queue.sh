#!/bin/sh
# Called as benchmarks/peers/native/programs.py has them called: WHAT FOLDER SECONDS SIZE BATCH FILLED.
case "$1" in
putting) echo 0 >"$2/left"; echo 0; exec sleep 60 ;;
taking) seq 1 "$(($6 - 1))" >"$2/left"; echo 0; exec sleep 60 ;;
draining) cat "$2/left" ;;
latency | two* | *"8 threads") echo None ;;
*) echo 123.0 ;;
esac
