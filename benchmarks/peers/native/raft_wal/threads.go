package main

import "time"

// ofTwoThreads has one thread put, and another one take what arrives, until the last one has.
func ofTwoThreads(q *queue, seconds float64, s sizes) (float64, error) {
	const ordinary, last = 0, 1 // as in benchmarks.peers.columns
	ended := make(chan error, 1)
	go func() {
		_, err := ofPuts(q, seconds, s.numbered(ordinary))
		if err == nil {
			err = q.put(s.numbered(last))
		}
		ended <- err
	}()
	var start time.Time
	for count := 0; ; {
		payloads, err := q.take(1)
		if err != nil {
			return 0, err
		}
		if len(payloads) == 0 {
			select {
			case err := <-ended:
				if err != nil {
					return 0, err
				}
			case <-time.After(time.Millisecond): // it cannot wait for a put
			}
			continue
		}
		number, err := numberOf(payloads[0])
		if err != nil {
			return 0, err
		}
		if number == last {
			return float64(count) / time.Since(start).Seconds(), nil
		}
		if count == 0 {
			start = time.Now()
		}
		count++
	}
}
