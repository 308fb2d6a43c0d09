package main

import (
	"errors"
	"fmt"
	"time"
)

// rate measures one figure; it knows none if the queue cannot do that. Durable or not, a put is the same: it syncs.
func rate(what, folder string, seconds float64, s sizes) (figure float64, known bool, err error) {
	q, err := open(folder)
	if err != nil {
		return 0, false, err
	}
	switch what {
	case "put", "durable put, 1 thread":
		figure, err = ofPuts(q, seconds, s.numbered(0))
	case fmt.Sprintf("put by %d", s.batch):
		figure, err = ofPuts(q, seconds, s.batchFrom(0)...)
	case "get":
		figure, err = ofTakes(q, seconds, s, 1)
	case fmt.Sprintf("get by %d", s.batch):
		figure, err = ofTakes(q, seconds, s, s.batch)
	case "two threads":
		figure, err = ofTwoThreads(q, seconds, s)
	default:
		return 0, false, nil
	}
	return figure, true, err
}

func ofPuts(q *queue, seconds float64, payloads ...[]byte) (float64, error) {
	return forSeconds(seconds, func() (int, error) {
		return len(payloads), q.put(payloads...)
	})
}

// ofTakes fills the queue first, for at most a second, and checks the order last.
func ofTakes(q *queue, seconds float64, s sizes, count int) (float64, error) {
	if err := fill(q, s, time.Second); err != nil {
		return 0, err
	}
	var taken [][]byte
	figure, err := forSeconds(seconds, func() (int, error) {
		payloads, err := q.take(count)
		taken = append(taken, payloads...)
		return len(payloads), err
	})
	if err != nil {
		return 0, err
	}
	for expected, payload := range taken {
		if number, err := numberOf(payload); err != nil || number != expected {
			return 0, errors.New("it hands out other messages than were put, or in another order")
		}
	}
	return figure, nil
}

// forSeconds repeats a step that says how many messages it moved; it returns how many a second.
func forSeconds(seconds float64, step func() (int, error)) (float64, error) {
	count, start := 0, time.Now()
	for time.Since(start).Seconds() < seconds {
		moved, err := step()
		if err != nil {
			return 0, err
		}
		if moved == 0 {
			break
		}
		count += moved
	}
	return float64(count) / time.Since(start).Seconds(), nil
}

// fill puts the messages that wait for those who take, or those that there is time for.
func fill(q *queue, s sizes, atMost time.Duration) error {
	end := time.Now().Add(atMost)
	for count := 0; count < s.filled && time.Now().Before(end); count += s.batch {
		if err := q.put(s.batchFrom(count)...); err != nil {
			return err
		}
	}
	return nil
}
