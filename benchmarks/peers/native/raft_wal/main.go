// Measures the module raft-wal as benchmarks.peers.columns and benchmarks.peers.kills measure the others.
//
// raft-wal-peer WHAT FOLDER SECONDS SIZE BATCH FILLED prints one figure; "None": the queue cannot do that. Of the
// processes to kill, each prints the number of every message once its call has returned.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(words []string) error {
	if len(words) != 6 {
		return errors.New("usage: raft-wal-peer WHAT FOLDER SECONDS SIZE BATCH FILLED")
	}
	what, folder := words[0], words[1]
	seconds, err := strconv.ParseFloat(words[2], 64)
	if err != nil {
		return err
	}
	var s sizes
	for each, size := range []*int{&s.message, &s.batch, &s.filled} {
		if *size, err = strconv.Atoi(words[3+each]); err != nil {
			return err
		}
	}
	switch what {
	case "putting", "taking", "draining":
		return beKilled(what, folder, s)
	}
	figure, known, err := rate(what, folder, seconds, s)
	if err != nil {
		return err
	}
	if known {
		fmt.Println(figure)
	} else {
		fmt.Println("None")
	}
	return nil
}
