package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/redrive-go/redrive/brokers"
)

const (
	topic     = "orders"
	deadTopic = "orders-dead"

	maxBody  = 64 << 10 // bytes of an order that the worker takes
	maxLine  = 1 << 20  // bytes of a line that the job reads
	maxLines = 100_000
)

//go:embed orders.jsonl
var embedded []byte

// line is one line of the input: a message to be.
type line struct {
	number int // in the file, from 1
	id     string
	body   []byte
}

// readOrders reads the lines of the file called name, or of the embedded one
// if that is empty. What is in a line is the worker's business.
func readOrders(name string) ([]line, error) {
	if name == "" {
		return split(bytes.NewReader(embedded))
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines, err := split(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return lines, nil
}

// split returns the lines that are not blank.
func split(r io.Reader) ([]line, error) {
	var lines []line
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxLine)
	number := 0
	for scanner.Scan() {
		number++
		body := bytes.TrimSpace(scanner.Bytes())
		if len(body) == 0 {
			continue
		}
		if len(lines) == maxLines {
			return nil, fmt.Errorf("more than %d orders: split the file", maxLines)
		}
		lines = append(lines, line{number, fmt.Sprintf("line-%d", number), bytes.Clone(body)})
	}
	switch err := scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("line %d is longer than %d bytes: there must be one order per line", number+1, maxLine)
	case err != nil:
		return nil, err
	case len(lines) == 0:
		return nil, errors.New("there are no orders in it: write one JSON object per line")
	}
	return lines, nil
}

func messages(lines []line) []brokers.Message {
	out := make([]brokers.Message, len(lines))
	for i, l := range lines {
		out[i] = brokers.Message{ID: l.id, Body: l.body}
	}
	return out
}
