package sqs

import (
	"context"
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/redrive-go/redrive/brokers"
)

const (
	// mostBuffered bounds in bytes the messages that wait to be handed out. Each
	// feed has an equal share of it, so that none that is paused takes the room of
	// others; beside that there may be one that is larger, and those below a size
	// that cannot add up to much.
	mostBuffered = 32 << 20
	smallMessage = 8 << 10

	// largeAnswer is how much of any number of answers may be read at a time. The
	// rest of each is read alone: until it is decoded it takes several times its size.
	largeAnswer = 256 << 10
)

// bulk is how many bytes m takes of the room, 0 if it is small.
func bulk(m *brokers.Message) int {
	size := len(m.Body)
	for _, h := range m.Headers {
		size += len(h.Name) + len(h.Type) + len(h.Value)
	}
	if size <= smallMessage {
		return 0
	}
	return size
}

// share is how many bytes of a feed may wait to be handed out.
func (f *feed) share() int { return mostBuffered / len(f.source.feeds) }

// fits is how many of n messages may be asked for, if they are as large as those of
// late. mu is held.
func (f *feed) fits(n int) int {
	if f.largest <= smallMessage {
		return n
	}
	free := f.share() - f.bytes - (f.first+f.asked)*f.largest
	return max(0, min(n, free/f.largest))
}

// isFull reports whether there is no room for so many bytes more. mu is held.
func (f *feed) isFull(more int) bool {
	return more > 0 && f.bytes > 0 && f.bytes+more > f.share()
}

// weigh takes in how large messages are that came together. mu is held.
func (f *feed) weigh(records []record) {
	largest := 0
	for i := range records {
		largest = max(largest, bulk(&records[i].message))
	}
	if len(records) > 0 {
		f.largest = max(largest, f.largest-f.largest/8)
	}
}

// add puts t behind what waits to be handed out, drop is told of what does no more.
// mu is held.
func (f *feed) add(t *token) {
	f.items = append(f.items, t)
	f.bytes += bulk(&t.record.message)
}

func (f *feed) drop(t *token) { f.bytes -= bulk(&t.record.message) }

// narrow has large answers read one after the other.
type narrow struct {
	next aws.HTTPClient
	turn chan struct{} // taken by whoever reads on, or decodes
}

func newNarrow(next aws.HTTPClient) *narrow {
	return &narrow{next: next, turn: make(chan struct{}, 1)}
}

// Do implements aws.HTTPClient.
func (n *narrow) Do(req *http.Request) (*http.Response, error) {
	resp, err := n.next.Do(req)
	if err == nil && resp.Body != nil {
		resp.Body = &answer{ReadCloser: resp.Body, ctx: req.Context(), turn: n.turn}
	}
	return resp, err
}

// answer is the body of one. The SDK closes it when it is decoded.
type answer struct {
	io.ReadCloser
	ctx  context.Context
	turn chan struct{}
	read int
	mine bool
}

func (a *answer) Read(p []byte) (int, error) {
	if a.read >= largeAnswer && !a.mine {
		select {
		case a.turn <- struct{}{}:
			a.mine = true
		case <-a.ctx.Done():
			return 0, context.Cause(a.ctx)
		}
	}
	n, err := a.ReadCloser.Read(p)
	a.read += n
	return n, err
}

func (a *answer) Close() error {
	if a.mine {
		a.mine = false
		<-a.turn
	}
	return a.ReadCloser.Close()
}
