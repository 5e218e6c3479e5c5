package lateness

import (
	"sync"
	"time"
)

// Pauses knows when something of each topic was last received. The zero value is
// ready to use.
type Pauses struct {
	mu   sync.Mutex
	last map[string]time.Time
	most time.Duration // between two of one topic
}

// Tick notes that something of topic is received.
func (p *Pauses) Tick(topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if last, ok := p.last[topic]; ok {
		p.most = max(p.most, now.Sub(last))
	}
	if p.last == nil {
		p.last = map[string]time.Time{}
	}
	p.last[topic] = now
}

// Longest returns the longest pause of a topic since the last call, one that
// still lasts included.
func (p *Pauses) Longest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, last := range p.last {
		p.most = max(p.most, time.Since(last))
	}
	most := p.most
	p.most = 0
	return most
}
