package kafka

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// What compaction has removed is skipped at once, however much that is.
func TestSkipOfAWideHole(t *testing.T) {
	p := newProgress(10)
	p.done(100)
	p.skip(12, 12)
	p.skip(11, 1<<40)
	if p.lowWater() != 10 || p.behind() != 1<<40-11 || !p.isDone(1<<40-1) || p.isDone(1<<40) {
		t.Errorf("low-water mark %d and %d behind, want 10 and all but one", p.lowWater(), p.behind())
	}
	if p.done(10); p.lowWater() != 1<<40 || p.behind() != 0 || len(slices.Concat(p.ahead.parts...)) > 0 {
		t.Errorf("low-water mark %d, %d behind, and %d intervals; want %d and nothing", p.lowWater(), p.behind(), len(slices.Concat(p.ahead.parts...)), int64(1<<40))
	}
}

func TestMarks(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(p *progress)
		want []mark
	}{
		{"nothing", func(*progress) {}, nil},
		{"handed out", func(p *progress) { p.start(7); p.start(5) }, []mark{{5, 1}, {7, 1}}},
		{"done", func(p *progress) { p.start(5); p.start(6); p.done(6) }, []mark{{5, 1}}},
		{"released", func(p *progress) { p.start(5); p.start(6); p.release(5) }, []mark{{6, 1}}},
		{"skipped", func(p *progress) { p.start(5); p.start(6); p.skip(5, 9) }, nil},
		{"skipped ahead", func(p *progress) { p.start(5); p.start(8); p.skip(7, 9) }, []mark{{5, 1}}},
		{"below", func(p *progress) { p.start(4) }, nil},
		{"done before", func(p *progress) { p.done(6); p.start(6) }, nil},
		{"a suspect", func(p *progress) { p.lost = map[int64]int{6: 2} }, []mark{{6, 2}}},
		{"a suspect at the low-water mark", func(p *progress) { p.lost = map[int64]int{5: 1} }, []mark{{5, 1}}},
		{"a suspect handed out", func(p *progress) { p.lost = map[int64]int{6: 2}; p.start(6); p.start(5) }, []mark{{5, 1}, {6, 3}}},
		{"a suspect released", func(p *progress) { p.lost = map[int64]int{6: 2}; p.start(6); p.release(6) }, []mark{{6, 2}}},
		{"a suspect done", func(p *progress) { p.lost = map[int64]int{6: 2}; p.start(6); p.done(6) }, nil},
		{"a suspect skipped", func(p *progress) { p.lost = map[int64]int{6: 2, 9: 1}; p.skip(6, 9) }, []mark{{9, 1}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newProgress(5)
			tt.do(p)
			if got := p.marks(); !slices.Equal(got, tt.want) {
				t.Errorf("marks = %v, want %v", got, tt.want)
			}
			next := readProgress(p.lowWater(), p.metadata(metadataLimit))
			if got := next.marks(); !slices.Equal(got, tt.want) {
				t.Errorf("the next owner has the marks %v, want %v", got, tt.want)
			}
			var suspects []int64
			for _, m := range tt.want {
				suspects = append(suspects, m.offset)
				if next.abandoned(m.offset) != m.count {
					t.Errorf("the next owner takes %d as abandoned %d times, want %d", m.offset, next.abandoned(m.offset), m.count)
				}
			}
			if !slices.Equal(next.suspects(), suspects) {
				t.Errorf("the next owner suspects %v, want %v", next.suspects(), suspects)
			}
		})
	}
}

func TestMarksPreferSuspectsThenTheOldest(t *testing.T) {
	p := newProgress(0)
	p.lost = map[int64]int{5000: 2}
	for offset := range int64(1000) {
		p.start(999 - offset)
	}
	marks := p.marks()
	if len(marks) != maxMarks {
		t.Fatalf("%d marks, want %d", len(marks), maxMarks)
	}
	for i, m := range marks[:maxMarks-1] {
		if (m != mark{int64(i), 1}) {
			t.Errorf("mark %d is %v, want offset %d, count 1", i, m, i)
		}
	}
	if last := marks[maxMarks-1]; last != (mark{5000, 2}) {
		t.Errorf("the last mark is %v, want that of the suspect", last)
	}
}

// model is what progress should be, in the plainest way.
type model struct {
	low  int64
	done map[int64]bool
}

func (m *model) isDone(offset int64) bool { return offset < m.low || m.done[offset] }

func (m *model) add(offset int64) {
	if offset >= m.low {
		m.done[offset] = true
	}
	for m.done[m.low] {
		delete(m.done, m.low)
		m.low++
	}
}

// follow does to a progress, and to the model of one, what steps say. They are
// three bytes each: what, and where above the low-water mark.
func follow(low int64, steps []byte) (*progress, *model) {
	p, m := newProgress(low), &model{low: low, done: map[int64]bool{}}
	for ; len(steps) >= 3; steps = steps[3:] {
		at := m.low - 2 + int64(steps[1]) + int64(steps[2])<<8
		switch steps[0] % 8 {
		case 0:
			width := int64(1) << (steps[0] >> 4 % 12)
			p.skip(at, at+width)
			for offset := at; offset < at+width; offset++ {
				m.add(offset)
			}
		case 1:
			at = m.low + int64(steps[1]%4)
			fallthrough
		case 2, 3:
			p.done(at)
			m.add(at)
		case 4:
			p.release(at)
		default:
			p.start(at)
		}
	}
	return p, m
}

func checkProgress(t *testing.T, p *progress, m *model) {
	t.Helper()
	if p.lowWater() != m.low || p.behind() != len(m.done) {
		t.Fatalf("low-water mark %d and %d behind, want %d and %d", p.lowWater(), p.behind(), m.low, len(m.done))
	}
	checkOffsets(t, &p.ahead, m.done, m.low)
	for offset := m.low - 2; offset < m.low+1<<12; offset++ {
		if p.isDone(offset) != m.isDone(offset) {
			t.Fatalf("isDone(%d) = %t, want %t", offset, p.isDone(offset), m.isDone(offset))
		}
	}
	for _, mark := range p.marks() {
		if m.isDone(mark.offset) {
			t.Fatalf("offset %d has a mark and is done", mark.offset)
		}
	}
}

// randomSteps returns steps for follow that stay within about 2^reach offsets.
func randomSteps(random *rand.Rand, reach int) []byte {
	steps := make([]byte, 3*random.IntN(1500))
	for i := 0; i < len(steps); i += 3 {
		at := random.IntN(1 << reach)
		steps[i], steps[i+1], steps[i+2] = byte(random.Uint32()), byte(at), byte(at>>8)
	}
	return steps
}

func TestProgressAgainstModel(t *testing.T) {
	for n := range 26 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 2))
		p, m := follow(random.Int64N(1<<40), randomSteps(random, 2+n%13))
		checkProgress(t, p, m)
	}
}

func FuzzProgress(f *testing.F) {
	f.Add(int64(0), []byte{1, 0, 0, 2, 5, 0, 0xf0, 9, 4, 5, 6, 0})
	f.Add(int64(1000), []byte{0xb0, 3, 0, 5, 7, 0, 1, 0, 0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, low int64, steps []byte) {
		p, m := follow(low&(1<<50-1), steps[:min(len(steps), 600)])
		checkProgress(t, p, m)
	})
}

// inOrder has width records out at any time, and settles the oldest one.
func inOrder(p *progress, next, width int64) {
	p.start(next)
	p.done(next - width)
}

func TestProgressInOrderAllocatesNothing(t *testing.T) {
	for _, width := range []int64{0, 1, 100, 5000} {
		p, next := newProgress(0), int64(0)
		for ; next < 10_000; next++ {
			inOrder(p, next, width)
		}
		allocated := testing.AllocsPerRun(20, func() {
			for range 1024 {
				inOrder(p, next, width)
				next++
			}
		})
		if allocated > 1 {
			t.Errorf("%d records in flight: %v allocations per %d records, want at most 1", width, allocated, 1024)
		}
	}
}
