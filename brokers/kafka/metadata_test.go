package kafka

import (
	"encoding/ascii85"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// readBack writes p, reads it, and checks what must hold however little fits:
// only what is done reads as done, from the lowest on, and writing what was
// read gives the same again.
func readBack(t *testing.T, p *progress, limit int) *progress {
	t.Helper()
	text := p.metadata(limit)
	if len(text) > max(limit, 0) || len(text) > 4000 { // of the 4096 that brokers take
		t.Fatalf("%d characters of metadata, the limit is %d", len(text), limit)
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }); i >= 0 {
		t.Fatalf("character %d of the metadata is %q, want printable ASCII", i, text[i])
	}
	got := readProgress(p.lowWater(), text)
	if got.lowWater() != p.lowWater() || got.behind() > p.behind() {
		t.Fatalf("low-water mark %d and %d behind became %d and %d", p.lowWater(), p.behind(), got.lowWater(), got.behind())
	}
	left := got.behind()
	for from, to := range got.ahead.runs(got.low) {
		if end := p.ahead.firstAbsent(from); end < to {
			t.Fatalf("offset %d reads as done, it is not", end)
		}
		left -= int(to - from)
	}
	for from, to := range p.ahead.runs(p.low) {
		kept := got.ahead.firstAbsent(from)
		if kept < to {
			for next := range got.ahead.runs(kept) {
				t.Fatalf("offset %d is done and does not read so, %d does: not the lowest ones were kept", kept, next)
			}
			break
		}
	}
	if left != 0 {
		t.Fatalf("%d behind, but the set has %d fewer", got.behind(), left)
	}
	marks, want := got.marks(), p.marks()
	if !slices.Equal(marks, want[:len(marks)]) {
		t.Fatalf("marks became %v, want the first of %v", marks, want)
	}
	again := got.metadata(limit)
	if len(again) > len(text) {
		t.Fatalf("%d characters became %d when read and written again", len(text), len(again))
	}
	if last := readProgress(got.lowWater(), again); last.behind() != got.behind() || !slices.Equal(last.marks(), marks) {
		t.Fatalf("%d behind and marks %v became %d and %v when read again", got.behind(), marks, last.behind(), last.marks())
	}
	if got.behind() == p.behind() && len(marks) == len(want) && again != text {
		t.Fatalf("metadata changed when read and written again\n got %q\nwant %q", again, text)
	}
	return got
}

// scattered has the offsets above low done, each with the given chance, in a
// span of that many.
func scattered(random *rand.Rand, low, span int64, density float64) *progress {
	p := newProgress(low)
	for offset := low + 1; offset <= low+span; offset++ {
		if random.Float64() < density {
			p.done(offset)
		}
	}
	return p
}

func TestMetadataOfWhatIsFarApart(t *testing.T) {
	const low = 1 << 33
	p := newProgress(low)
	p.done(low + 1)
	p.skip(low+3, low+1<<40)
	p.done(low + 1<<41)
	p.start(low + 1<<50)
	if got := readBack(t, p, metadataLimit); got.behind() != p.behind() || len(got.marks()) != 1 {
		t.Errorf("%d behind and a mark became %d and %v", p.behind(), got.behind(), got.marks())
	}
}

func TestMetadataHoldsAnyPatternOver24000Offsets(t *testing.T) {
	for _, inFlight := range []int64{0, 64} {
		for _, density := range []float64{0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1} {
			seed := rand.Uint64()
			p := scattered(rand.New(rand.NewPCG(seed, 3)), 7_000_000_000, 24_000, density)
			for offset := p.lowWater(); offset < p.lowWater()+2*inFlight; offset++ {
				p.start(offset)
			}
			got := readBack(t, p, metadataLimit)
			if got.behind() != p.behind() || len(got.marks()) != len(p.marks()) {
				t.Errorf("seed %d, density %g, %d in flight: %d offsets and %d marks became %d and %d",
					seed, density, inFlight, p.behind(), len(p.marks()), got.behind(), len(got.marks()))
			}
		}
	}
}

func TestMetadataCapacity(t *testing.T) {
	for _, tt := range []struct {
		density float64
		span    int64
		least   int
	}{
		{0.001, 2_000_000, 1500},
		{0.01, 300_000, 1900},
		{0.1, 50_000, 3000},
		{0.5, 50_000, 12_000},
		{0.9, 50_000, 22_000},
		{0.99, 300_000, 120_000},
	} {
		seed := rand.Uint64()
		p := scattered(rand.New(rand.NewPCG(seed, 4)), 1<<32, tt.span, tt.density)
		got := readBack(t, p, metadataLimit)
		_, bitmap := p.encodeSet(packed(metadataLimit-len(metadataVersion)) - checksumSize - headSize)
		end := p.low
		for _, to := range got.ahead.runs(got.low) {
			end = to
		}
		t.Logf("density %5.1f %%: %6d done offsets over %7d fit, as %s", 100*tt.density, got.behind(), end-p.low, []string{"runs", "a bitmap"}[bitmap])
		if got.behind() < tt.least {
			t.Errorf("seed %d, density %g: %d offsets fit, want at least %d", seed, tt.density, got.behind(), tt.least)
		}
	}
}

func TestMetadataIsASubset(t *testing.T) {
	for n := range 26 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 5))
		p, _ := follow(random.Int64N(1<<40), randomSteps(random, 2+n%13))
		for _, limit := range []int{-1, 0, 3, 10, 15, 20, 50, 300, random.IntN(1000), metadataLimit, 1 << 20} {
			readBack(t, p, limit)
		}
	}
}

func TestMarkCountIsBounded(t *testing.T) {
	p := newProgress(0)
	p.lost = map[int64]int{0: math.MaxInt}
	if n := readProgress(0, p.metadata(metadataLimit)).abandoned(0); n != maxLost {
		t.Errorf("abandoned %d times, want %d", n, maxLost)
	}
}

// sealed returns metadata with any content and a checksum that is right.
func sealed(low int64, data ...byte) string {
	b := binary.BigEndian.AppendUint32(nil, checksum(low, data))
	b = append(b, data...)
	text := make([]byte, ascii85.MaxEncodedLen(len(b)))
	return metadataVersion + string(text[:ascii85.Encode(text, b)])
}

func TestForeignMetadataTellsNothing(t *testing.T) {
	const low = 50
	p := newProgress(low)
	p.skip(52, 60)
	p.start(low)
	good := p.metadata(metadataLimit)
	if readProgress(low, good).behind() != 8 {
		t.Fatalf("%q is not readable", good)
	}
	huge := binary.AppendUvarint(nil, math.MaxUint64)
	for name, text := range map[string]string{
		"empty":               "",
		"of somebody else":    "consumer-1",
		"JSON":                `{"offset": 50}`,
		"another version":     "r2:" + good[3:],
		"no content":          metadataVersion,
		"no payload":          sealed(low),
		"cut off":             good[:len(good)-1],
		"changed":             good[:len(good)-2] + "!" + good[len(good)-1:],
		"of another offset":   sealed(low+1, 0, 0),
		"too long":            good + strings.Repeat(" ", metadataLimit),
		"not ASCII85":         metadataVersion + "xyz\xff",
		"a broken head":       sealed(low, 0x80),
		"too many marks":      sealed(low, append([]byte{2 * (maxMarks + 1) & 0xff, 1}, make([]byte, 70)...)...),
		"fewer marks":         sealed(low, 4, 0),
		"a mark far out":      sealed(low, append([]byte{2}, huge...)...),
		"a count far out":     sealed(low, append([]byte{2, 1}, huge...)...),
		"a count too high":    sealed(low, append([]byte{2, 1}, binary.AppendUvarint(nil, maxLost)...)...),
		"a broken run":        sealed(low, 0, 0x80),
		"a run without end":   sealed(low, 0, 1),
		"a run far out":       sealed(low, append([]byte{0}, huge...)...),
		"a length far out":    sealed(low, append([]byte{0, 1}, huge...)...),
		"runs that overflow":  sealed(low, slices.Repeat(append([]byte{0, 1}, binary.AppendUvarint(nil, maxOffset-2)...), 3)...),
		"marks that overflow": sealed(low, append(append([]byte{4}, binary.AppendUvarint(nil, 2*(maxOffset-2))...), binary.AppendUvarint(nil, 2*(maxOffset-2))...)...),
	} {
		t.Run(name, func(t *testing.T) {
			got := readProgress(low, text)
			if got.lowWater() != low || got.behind() != 0 || len(got.marks()) != 0 {
				t.Errorf("%q reads as %d behind and the marks %v, want nothing", text, got.behind(), got.marks())
			}
		})
	}
	for _, other := range []int64{-1, 0, low - 1, low + 1, maxOffset + 1, math.MaxInt64, math.MinInt64} {
		if got := readProgress(other, good); got.lowWater() != other || got.behind() != 0 || len(got.suspects()) != 0 {
			t.Errorf("at offset %d it reads as %d behind: it was written at %d", other, got.behind(), low)
		}
	}
}

func TestMarksOfWhatIsDoneAreForgotten(t *testing.T) {
	text := sealed(0, 4, 0, 0, 0) // marks at 0 and 1, and 1 is done
	if got := readProgress(0, text); !slices.Equal(got.marks(), []mark{{0, 1}}) || got.behind() != 1 {
		t.Errorf("%d behind and marks %v, want 1 and one at 0", got.behind(), got.marks())
	}
}

func TestHostileMetadataTakesLittleMemory(t *testing.T) {
	data := []byte{0}
	for range 1500 {
		data = binary.AppendUvarint(data, 2048)
	}
	text := sealed(0, data...) // offsets as far apart as makes reading it dear
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := readProgress(0, text)
	runtime.ReadMemStats(&after)
	taken := after.TotalAlloc - before.TotalAlloc
	t.Logf("%d characters that name %d offsets allocate %d bytes", len(text), p.behind(), taken)
	if p.behind() != 1500 || taken > 512<<10 {
		t.Errorf("it names %d offsets and took %d bytes, want 1500 and at most %d", p.behind(), taken, 512<<10)
	}
}

func FuzzReadProgress(f *testing.F) {
	p := newProgress(5)
	p.skip(10, 20)
	p.start(7)
	f.Add(int64(5), p.metadata(metadataLimit), false)
	f.Add(int64(5), "\x02\x01\x05\x00\x00", true)
	f.Add(int64(5), "\x01\xff\x0f\xf0", true)
	f.Add(int64(-1), "r1:zzzz", false)
	f.Fuzz(func(t *testing.T, low int64, text string, seal bool) {
		if seal {
			text = sealed(low, []byte(text)...)
		}
		p := readProgress(low, text)
		if p.lowWater() != low || p.isDone(low) || len(p.suspects()) > maxMarks {
			t.Fatalf("it reads as low-water mark %d with %d suspects", p.lowWater(), len(p.suspects()))
		}
		if n := len(slices.Concat(p.ahead.parts...)); n > 3*4*metadataLimit {
			t.Fatalf("%d characters take %d intervals", len(text), n)
		}
		for _, limit := range []int{20, metadataLimit} {
			readBack(t, p, limit)
		}
	})
}
