package term

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Errors of [Streams.Confirm].
var (
	// ErrNobody reports that there is nobody to ask.
	ErrNobody = errors.New("there is nobody to ask")

	// ErrDeclined reports that the answer was another.
	ErrDeclined = errors.New("the number was not typed")
)

// Confirm says what is about to be done, and asks for count to be typed. It
// returns nil if it was, ErrDeclined if anything else was, ErrNobody if standard
// input and error are no terminals, and the cause of ctx if that ends first.
func (s Streams) Confirm(ctx context.Context, what string, count int) error {
	if !s.Asks {
		return ErrNobody
	}
	fmt.Fprintf(s.Err, "%s\nType %d to go on: ", SafeLines(what), count)
	answer := make(chan string, 1)
	// A read of a terminal cannot be called off: after ctx it ends with the process.
	go func() {
		line, _ := bufio.NewReader(s.In).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(s.Err)
		return context.Cause(ctx)
	case line := <-answer:
		if line != strconv.Itoa(count) {
			return ErrDeclined
		}
		return nil
	}
}
