package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/compress/lz4"
)

// errBomb reports a batch that becomes larger than it may.
var errBomb = errors.New("it becomes larger than that")

// leastScratch is how much memory there is for any batch, and mostScratch how
// much is kept for the next one whatever it is.
const (
	leastScratch = 256 << 10
	mostScratch  = 4 << 20
)

// decompressor makes batches of all codecs larger, up to a bound. It does one at
// a time: a few bytes may become many, and all partitions of a client share it.
// Its user holds mu for as long as what it has returned is in use.
type decompressor struct {
	mu      sync.Mutex
	scratch []byte
	before  int // bytes of it used, by the last batch
	gzip    gzip.Reader
	lz4     lz4.Codec
	zstd    *zstd.Decoder
	most    int // that zstd makes, the largest bound so far
	wide    *zstd.Decoder
}

// decompress returns what src becomes, which is no more than most bytes, or
// errBomb. No codec takes much more memory than that, whatever src claims.
func (d *decompressor) decompress(src []byte, codec compress.Compression, most int) (out []byte, err error) {
	if cap(d.scratch) > mostScratch && d.before < cap(d.scratch)/4 {
		d.scratch = nil
	}
	switch codec {
	case compress.None:
		return src, nil
	case compress.Gzip:
		if err = d.gzip.Reset(bytes.NewReader(src)); err == nil {
			out, err = d.drain(&d.gzip, most)
		}
	case compress.Lz4:
		r := d.lz4.NewReader(bytes.NewReader(src))
		out, err = d.drain(r, most)
		r.Close()
	case compress.Snappy:
		out, err = d.fromSnappy(src, most)
	case compress.Zstd:
		out, err = d.fromZstd(src, most)
	default:
		err = fmt.Errorf("codec %d is none", codec)
	}
	if d.before = len(out); errors.Is(err, errBomb) {
		d.before = most // there may be more of them
	}
	return out, err
}

// memory returns an empty slice that may grow to size.
func (d *decompressor) memory(size int) []byte {
	if cap(d.scratch) < size {
		d.scratch = make([]byte, 0, size)
	}
	return d.scratch[:0:size]
}

func (d *decompressor) drain(r io.Reader, most int) ([]byte, error) {
	limit := most + 1
	n := 0
	for size := min(max(cap(d.scratch), leastScratch), limit); ; size = min(4*size, limit) {
		before := d.scratch[:n]
		out := d.memory(size)[:size]
		copy(out, before)
		for n < size {
			k, err := r.Read(out[n:])
			n += k
			switch {
			case n > most:
				return nil, errBomb
			case errors.Is(err, io.EOF):
				return out[:n], nil
			case err != nil:
				return nil, err
			}
		}
	}
}

// fromZstd does not stream: a frame may claim a window of gigabytes, which a
// stream has to keep, and what is in memory as a whole does not need.
func (d *decompressor) fromZstd(src []byte, most int) ([]byte, error) {
	if most > d.most {
		var err error
		d.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(uint64(most)))
		if err != nil {
			return nil, err
		}
		d.most = most
	}
	d.memory(leastScratch)
	out, err := d.zstd.DecodeAll(src, d.scratch[:0])
	if cap(out) > cap(d.scratch) {
		d.scratch = out[:0]
	}
	switch {
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return d.fromWideZstd(src, most)
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), err == nil && len(out) > most:
		return nil, errBomb
	case err != nil:
		return nil, err
	}
	return out, nil
}

// fromWideZstd is for a window that is larger than the bound, of what may be
// small all the same: the highest levels have 128 MiB. The library does not tell
// what is wrong if it has no room for more.
func (d *decompressor) fromWideZstd(src []byte, most int) ([]byte, error) {
	if d.wide == nil {
		var err error
		d.wide, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return nil, err
		}
	}
	out, err := d.wide.DecodeAll(src, d.memory(most))
	if err != nil {
		return nil, errBomb
	}
	return out, nil
}

// A Java producer stores snappy in chunks, behind a mark and two versions; others
// store it as one.
var chunkMark = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

const chunkHead = 16

func (d *decompressor) fromSnappy(src []byte, most int) ([]byte, error) {
	chunks := [][]byte{src}
	if len(src) > chunkHead && bytes.HasPrefix(src, chunkMark) {
		chunks = chunks[:0]
		for src = src[chunkHead:]; len(src) > 0; {
			if len(src) < 4 {
				return nil, io.ErrUnexpectedEOF
			}
			size := binary.BigEndian.Uint32(src)
			if src = src[4:]; uint64(size) > uint64(len(src)) {
				return nil, io.ErrUnexpectedEOF
			}
			chunks, src = append(chunks, src[:size]), src[size:]
		}
	}
	total := 0 // each claims its size
	for _, chunk := range chunks {
		n, err := s2.DecodedLen(chunk)
		if err != nil {
			return nil, err
		}
		if total += n; total > most {
			return nil, errBomb
		}
	}
	out := d.memory(total)
	for _, chunk := range chunks {
		n, _ := s2.DecodedLen(chunk)
		if _, err := s2.Decode(out[len(out):len(out)+n], chunk); err != nil {
			return nil, err
		}
		out = out[:len(out)+n]
	}
	return out, nil
}
