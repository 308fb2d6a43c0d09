package main

import (
	"fmt"
	"strconv"
)

const rest = "abcdefghijklmnopqrstuvwxyz0123456789"

// sizes are the caller's: bytes of a message, messages of a batch, messages that wait for those who take.
type sizes struct {
	message, batch, filled int
}

func (s sizes) numbered(number int) []byte {
	payload := fmt.Appendf(make([]byte, 0, s.message), "%016d", number)
	for len(payload) < s.message {
		payload = append(payload, rest[:min(len(rest), s.message-len(payload))]...)
	}
	return payload
}

func (s sizes) batchFrom(number int) [][]byte {
	payloads := make([][]byte, s.batch)
	for each := range payloads {
		payloads[each] = s.numbered(number + each)
	}
	return payloads
}

func numberOf(payload []byte) (int, error) {
	return strconv.Atoi(string(payload[:16]))
}
