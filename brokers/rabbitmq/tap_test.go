package rabbitmq_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// tap is a Dial function that sees every frame, and can hold up what the broker
// sends, drop it, or cut the connection instead.
type tap struct {
	mu     sync.Mutex
	conns  []*tapped
	filter func(*tapped, frame) verdict
	sent   func(frame)                  // is called with each frame for the broker
	edit   func(*tapped, []byte) []byte // changes the bytes for the broker
	frozen chan struct{}                // nil, or closed by thaw

	swallows bool // what is sent by those who publish
}

type verdict int

const (
	pass verdict = iota
	drop
	cut
)

// frame is a frame; class and method are those of a method frame.
type frame struct {
	raw           []byte
	class, method uint16
}

// Methods that tests look for.
const (
	classBasic      = 60
	classConnection = 10
	classChannel    = 20
	classConfirm    = 85
	methodAck       = 80
	methodPublish   = 40
	methodQos       = 10
	methodSelect    = 10 // of confirms
	methodClose     = 40 // of a channel
	methodDeliver   = 60
	methodCancelOK  = 31
	methodStartOK   = 11
	methodTuneOK    = 31

	methodConnectionClose = 50
)

func (f frame) is(class, method uint16) bool { return f.class == class && f.method == method }

type tapped struct {
	net.Conn
	tap    *tap
	unread bytes.Buffer
	sent   *io.PipeWriter
	inject chan []byte
	gone   chan struct{}
	once   sync.Once

	publishes bool // has asked for confirms
}

func (t *tap) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	out, in := io.Pipe()
	c := &tapped{Conn: conn, tap: t, sent: in, inject: make(chan []byte, 1), gone: make(chan struct{})}
	go t.listen(c, out)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns = append(t.conns, c)
	return c, nil
}

// listen tells of every frame in what is sent to the broker, which begins with
// the version of the protocol.
func (t *tap) listen(c *tapped, sent *io.PipeReader) {
	defer sent.Close() // or writing would wait for it
	if _, err := io.ReadFull(sent, make([]byte, 8)); err != nil {
		return
	}
	for {
		f, err := readFrame(sent)
		if err != nil {
			return
		}
		t.mu.Lock()
		hear := t.sent
		c.publishes = c.publishes || f.is(classConfirm, methodSelect)
		t.mu.Unlock()
		if hear != nil {
			hear(f)
		}
	}
}

// hear installs what is told of every frame that is sent to the broker.
func (t *tap) hear(sent func(frame)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent = sent
}

// set installs what decides on frames.
func (t *tap) set(filter func(*tapped, frame) verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.filter = filter
}

// cut closes all connections without a word.
func (t *tap) cut() {
	t.mu.Lock()
	conns := t.conns
	t.conns = nil
	t.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// freeze keeps everything that is sent, on both sides, until thaw is called: as in
// a network that takes and gives nothing any more.
func (t *tap) freeze() (thaw func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	frozen := make(chan struct{})
	t.frozen = frozen
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.frozen == frozen {
			t.frozen = nil
			close(frozen)
		}
	}
}

// thawed waits for the end of a freeze.
func (c *tapped) thawed() error {
	c.tap.mu.Lock()
	frozen := c.tap.frozen
	c.tap.mu.Unlock()
	if frozen == nil {
		return nil
	}
	select {
	case <-frozen:
		return nil
	case <-c.gone:
		return net.ErrClosed
	}
}

// swallow makes what is sent to publish get lost, until heal is called, which cuts
// all connections.
func (t *tap) swallow() (heal func()) {
	set := func(to bool) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.swallows = to
	}
	set(true)
	return func() {
		t.cut()
		set(false)
	}
}

// send pretends that the broker sent raw on every connection. It arrives with
// the next frame, such as a heartbeat.
func (t *tap) send(raw []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.conns {
		c.inject <- raw
	}
}

func (c *tapped) Close() error {
	c.once.Do(func() {
		close(c.gone)
		c.sent.Close()
	})
	return c.Conn.Close()
}

func (c *tapped) Write(p []byte) (int, error) {
	if err := c.thawed(); err != nil {
		return 0, err
	}
	c.tap.mu.Lock()
	lost, edit := c.tap.swallows && c.publishes, c.tap.edit
	c.tap.mu.Unlock()
	if lost {
		return len(p), nil
	}
	c.sent.Write(p)
	if edit == nil {
		return c.Conn.Write(p)
	}
	_, err := c.Conn.Write(edit(c, p))
	return len(p), err
}

func (c *tapped) Read(p []byte) (int, error) {
	for c.unread.Len() == 0 {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	return c.unread.Read(p)
}

// next reads a frame and does with it what the filter says.
func (c *tapped) next() error {
	f, err := readFrame(c.Conn)
	if err != nil {
		return err
	}
	if err := c.thawed(); err != nil {
		return err
	}
	c.tap.mu.Lock()
	filter := c.tap.filter
	c.tap.mu.Unlock()
	v := pass
	if filter != nil {
		v = filter(c, f)
	}
	switch v {
	case cut:
		c.Close()
		return errors.New("cut by the test")
	case pass:
		c.unread.Write(f.raw)
	}
	select {
	case raw := <-c.inject:
		c.unread.Write(raw)
	default:
	}
	return nil
}

func readFrame(r io.Reader) (frame, error) {
	head := make([]byte, 7)
	if _, err := io.ReadFull(r, head); err != nil {
		return frame{}, err
	}
	rest := make([]byte, binary.BigEndian.Uint32(head[3:])+1)
	if _, err := io.ReadFull(r, rest); err != nil {
		return frame{}, err
	}
	f := frame{raw: append(head, rest...)}
	if head[0] == 1 && len(rest) > 4 {
		f.class, f.method = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	}
	return f, nil
}

// method is a method frame of channel 0.
func method(class, method uint16, arguments ...byte) []byte {
	raw := []byte{1, 0, 0}
	raw = binary.BigEndian.AppendUint32(raw, uint32(4+len(arguments)))
	raw = binary.BigEndian.AppendUint16(raw, class)
	raw = binary.BigEndian.AppendUint16(raw, method)
	return append(append(raw, arguments...), 0xCE)
}
