package main

import (
	"fmt"
	"time"
)

// beKilled puts or takes until killed, or takes what is left; it prints the number of each message.
func beKilled(what, folder string, s sizes) error {
	q, err := open(folder)
	if err != nil {
		return err
	}
	switch what {
	case "putting":
		return putOn(q, s)
	case "taking":
		if err := fill(q, s, time.Hour); err != nil {
			return err
		}
		defer time.Sleep(time.Minute) // the kill comes
	}
	return takeAll(q)
}

func putOn(q *queue, s sizes) error {
	for number := 0; ; number++ {
		if err := q.put(s.numbered(number)); err != nil {
			return err
		}
		fmt.Println(number)
	}
}

func takeAll(q *queue) error {
	for {
		payloads, err := q.take(1)
		if err != nil || len(payloads) == 0 {
			return err
		}
		number, err := numberOf(payloads[0])
		if err != nil {
			return err
		}
		fmt.Println(number)
	}
}
