package kafka

import (
	"encoding/ascii85"
	"encoding/binary"
	"hash/crc32"
	"maps"
	"strings"
)

// The metadata of a commit carries what its offset, the low-water mark, does
// not tell: metadataVersion, and then in ASCII85
//
//	checksum  CRC-32 of the committed offset and of all that follows
//	head      uvarint: number of marks, doubled, plus 1 if the set is a bitmap
//	marks     pairs: distance from the mark before, count
//	set       to the end, pairs: distance from the run before, length of the
//	          run; or a bitmap whose lowest bit is the offset after the
//	          committed one
//
// The checksum covers the committed offset, to which all others are relative:
// metadata that somebody copied to another offset, such as a tool that
// translates offsets for another cluster, must not make records look done.
const (
	metadataVersion = "r1:"

	// metadataLimit is the most characters written or read. Brokers take 4096
	// unless told otherwise (offset.metadata.max.bytes).
	metadataLimit = 4000

	checksumSize = 4
	headSize     = 2 // at most

	// maxLost bounds the count of a mark.
	maxLost = 1000

	// maxOffset bounds the offsets that metadata may name, far above any real
	// one, so that sums do not overflow.
	maxOffset = 1 << 61
)

// metadata returns p in at most limit characters of ASCII, or metadataLimit if
// that is less. If not all that is done fits, it is the lowest offsets that
// do: the others will be handled again should this owner get lost. It is empty
// when there is nothing to tell.
func (p *progress) metadata(limit int) string {
	room := packed(min(limit, metadataLimit)-len(metadataVersion)) - checksumSize - headSize
	marks, n := encodeMarks(p.marks(), p.low, room)
	set, bitmap := p.encodeSet(room - len(marks))
	if n == 0 && len(set) == 0 {
		return ""
	}
	data := binary.AppendUvarint(make([]byte, checksumSize), uint64(2*n+bitmap))
	data = append(append(data, marks...), set...)
	binary.BigEndian.PutUint32(data, checksum(p.low, data[checksumSize:]))
	text := make([]byte, ascii85.MaxEncodedLen(len(data)))
	return metadataVersion + string(text[:ascii85.Encode(text, data)])
}

// packed returns how many bytes n characters of ASCII85 hold at least.
func packed(n int) int {
	return n/5*4 + max(n%5-1, 0)
}

func checksum(low int64, data []byte) uint32 {
	sum := crc32.ChecksumIEEE(binary.BigEndian.AppendUint64(nil, uint64(low)))
	return crc32.Update(sum, crc32.IEEETable, data)
}

// encodeMarks returns the first n marks, as many as fit into room bytes.
func encodeMarks(marks []mark, low int64, room int) (data []byte, n int) {
	last := low - 1
	for _, m := range marks {
		next := appendPair(data, m.offset-last, int64(min(m.count, maxLost)))
		if len(next) > room {
			break
		}
		data, last = next, m.offset
		n++
	}
	return data, n
}

// encodeSet returns what is done, in the form that holds more of it in room
// bytes, or in the shorter one. bitmap is 1 for that form.
func (p *progress) encodeSet(room int) (data []byte, bitmap int) {
	runs, inRuns := p.encodeRuns(room)
	bits, inBits := p.encodeBitmap(room)
	if inBits > inRuns || inBits == inRuns && len(bits) < len(runs) {
		return bits, 1
	}
	return runs, 0
}

func (p *progress) encodeRuns(room int) (data []byte, offsets int64) {
	last := p.low
	for from, to := range p.ahead.runs(p.low) {
		next := appendPair(data, from-last, to-from)
		if len(next) > room {
			break
		}
		data, last = next, to
		offsets += to - from
	}
	return data, offsets
}

func (p *progress) encodeBitmap(room int) (data []byte, offsets int64) {
	first := p.low + 1
	end := first + 8*int64(max(room, 0))
	for from, to := range p.ahead.runs(first) {
		to = min(to, end)
		if from >= to {
			break
		}
		offsets += to - from
		for bit := from - first; bit < to-first; bit++ {
			for int64(len(data)) <= bit/8 {
				data = append(data, 0)
			}
			data[bit/8] |= 1 << (bit % 8)
		}
	}
	return data, offsets
}

// appendPair appends two numbers from 1 on. An n of 1, the most frequent one,
// takes no room of its own.
func appendPair(data []byte, distance, n int64) []byte {
	if n == 1 {
		return binary.AppendUvarint(data, uint64(distance-1)<<1)
	}
	data = binary.AppendUvarint(data, uint64(distance-1)<<1|1)
	return binary.AppendUvarint(data, uint64(n-2))
}

// readPair returns the numbers of the pair that data begins with, both from 1
// to maxOffset, and what follows.
func readPair(data []byte) (distance, n int64, rest []byte, ok bool) {
	v, size := binary.Uvarint(data)
	if size <= 0 || v>>1 >= maxOffset {
		return 0, 0, nil, false
	}
	distance, n, data = int64(v>>1)+1, 1, data[size:]
	if v&1 == 0 {
		return distance, n, data, true
	}
	v, size = binary.Uvarint(data)
	if size <= 0 || v > maxOffset-2 {
		return 0, 0, nil, false
	}
	return distance, int64(v) + 2, data[size:], true
}

// readProgress returns the progress of a partition whose committed offset is
// low, as the owner that wrote metadata left it. Metadata that is not ours, of
// another version, of another offset or damaged tells nothing: what was done
// above low is handled again.
func readProgress(low int64, metadata string) *progress {
	p := newProgress(low)
	if !p.read(metadata) {
		return newProgress(low)
	}
	return p
}

func (p *progress) read(metadata string) bool {
	text, ok := strings.CutPrefix(metadata, metadataVersion)
	if !ok || len(metadata) > metadataLimit || p.low < 0 || p.low > maxOffset {
		return false
	}
	data := make([]byte, 4*len(text)) // a single character stands for 4 bytes that are 0
	size, _, err := ascii85.Decode(data, []byte(text), true)
	if err != nil || size < checksumSize {
		return false
	}
	sum, data := binary.BigEndian.Uint32(data), data[checksumSize:size]
	head, size := binary.Uvarint(data)
	if sum != checksum(p.low, data) || size <= 0 || head/2 > maxMarks {
		return false
	}
	data, ok = p.readMarks(data[size:], int(head/2))
	if !ok {
		return false
	}
	if head%2 == 1 {
		p.readBitmap(data)
	} else if !p.readRuns(data) {
		return false
	}
	maps.DeleteFunc(p.lost, func(offset int64, _ int) bool { return p.isDone(offset) })
	return true
}

func (p *progress) readMarks(data []byte, n int) (rest []byte, ok bool) {
	p.lost = make(map[int64]int, n)
	last := p.low - 1
	for range n {
		distance, count, rest, ok := readPair(data)
		if !ok || last+distance > maxOffset || count > maxLost {
			return nil, false
		}
		last += distance
		data = rest
		p.lost[last] = int(count)
	}
	return data, true
}

func (p *progress) readRuns(data []byte) bool {
	last := p.low
	for len(data) > 0 {
		distance, length, rest, ok := readPair(data)
		if !ok || last+distance+length > maxOffset {
			return false
		}
		last += distance + length
		data = rest
		p.ahead.add(last-length, last)
	}
	return true
}

func (p *progress) readBitmap(data []byte) {
	for bit := range int64(len(data)) * 8 {
		if data[bit/8]&(1<<(bit%8)) != 0 {
			p.ahead.add(p.low+1+bit, p.low+2+bit)
		}
	}
}
