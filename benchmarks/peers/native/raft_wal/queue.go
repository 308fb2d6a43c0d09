package main

import (
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// queue is a log whose entries are taken from its beginning; the log keeps its beginning on the disk.
// One thread may put while another one takes, as raft appends while it deletes what a snapshot has.
type queue struct {
	log  *wal.WAL
	next uint64 // index of an entry: its writer counts them
}

func open(folder string) (*queue, error) {
	log, err := wal.Open(folder)
	if err != nil {
		return nil, err
	}
	last, err := log.LastIndex()
	return &queue{log, last + 1}, err
}

// put appends messages with one sync for all of them.
func (q *queue) put(payloads ...[]byte) error {
	entries := make([]*raft.Log, len(payloads))
	for each, payload := range payloads {
		entries[each] = &raft.Log{Index: q.next + uint64(each), Data: payload}
	}
	q.next += uint64(len(payloads))
	return q.log.StoreLogs(entries)
}

// take returns so many messages or what is there, and moves the beginning of the log behind them.
func (q *queue) take(count int) ([][]byte, error) {
	last, err := q.log.LastIndex()
	if err != nil || last == 0 { // it is empty
		return nil, err
	}
	first, err := q.log.FirstIndex()
	if err != nil {
		return nil, err
	}
	last = min(last, first+uint64(count)-1)
	payloads := make([][]byte, 0, count)
	for index := first; index <= last; index++ {
		var entry raft.Log
		if err := q.log.GetLog(index, &entry); err != nil {
			return nil, err
		}
		payloads = append(payloads, entry.Data)
	}
	return payloads, q.log.DeleteRange(first, last)
}
