package wire

import (
	"strings"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/text"
)

// Headers of brokers.Death, which a message carries while it waits for its dead
// letter. Workers alone write them.
const (
	nameDeath          = prefix + "death-"
	nameDeathReason    = nameDeath + "reason"
	nameDeathAt        = nameDeath + "at"
	nameDeathBy        = nameDeath + "by"
	nameDeathAbandoned = nameDeath + "abandoned"
	nameDeathAttempt   = nameDeath + "attempt"
	nameDeathDueAt     = nameDeath + "due-at"
	nameDeathType      = nameDeath + "error-type"
	nameDeathCode      = nameDeath + "error-code"
	nameDeathMessage   = nameDeath + "error-message"
	nameDeathPrint     = nameDeath + "error-fingerprint"
	nameDeathStack     = nameDeath + "error-stack"
	nameDeathRule      = nameDeath + "rule"
	nameDeathTruncated = nameDeath + "truncated"

	// DeathSignature is the signature of the others, by a worker with a secret.
	DeathSignature = nameDeath + "signature"
)

// IsDeath reports whether name is that of a header of brokers.Death.
func IsDeath(name string) bool {
	if !strings.HasPrefix(name, nameDeath) {
		return false
	}
	switch name {
	case nameDeathReason, nameDeathAt, nameDeathBy, nameDeathAbandoned, nameDeathAttempt, nameDeathDueAt, nameDeathType, nameDeathCode,
		nameDeathMessage, nameDeathPrint, nameDeathStack, nameDeathRule, nameDeathTruncated, DeathSignature:
		return true
	}
	return false
}

// deathText is a text of a death and its header.
type deathText struct {
	name string
	text *string
	max  int
}

func textsOf(d *brokers.Death) [8]deathText {
	return [...]deathText{
		{nameDeathReason, &d.Reason, text.MaxWord},
		{nameDeathBy, &d.By, text.MaxShort},
		{nameDeathType, &d.ErrorType, text.MaxShort},
		{nameDeathCode, &d.ErrorCode, text.MaxShort},
		{nameDeathPrint, &d.Fingerprint, text.MaxWord},
		{nameDeathRule, &d.Rule, text.MaxShort},
		{nameDeathMessage, &d.ErrorText, text.MaxError},
		{nameDeathStack, &d.Stack, text.MaxStack},
	}
}

// safe returns the text as a writer sends it: bounded and escaped.
func (t deathText) safe() string {
	write := text.Line
	if t.name == nameDeathStack {
		write = text.Lines
	}
	s, _ := write(*t.text, t.max)
	return s
}

// death writes d, unless it is nil or has no reason.
func (w *writer) death(d *brokers.Death) {
	if d == nil || d.Reason == "" {
		return
	}
	for _, t := range textsOf(d) {
		w.put(t.name, t.safe(), "")
	}
	w.time(nameDeathAt, d.At)
	w.count(nameDeathAbandoned, d.Abandoned)
	w.count(nameDeathAttempt, d.Attempt)
	w.time(nameDeathDueAt, roundUp(d.DueAt))
	w.put(nameDeathTruncated, strings.Join(text.Words(d.Truncated), ","), "")
}

// death reads why a message is dead. It returns nil if there is no valid reason.
func (r reader) death() *brokers.Death {
	if r.value(nameDeathReason) == "" {
		return nil
	}
	d := brokers.Death{
		At:        r.time(nameDeathAt),
		Abandoned: r.count(nameDeathAbandoned),
		Attempt:   r.count(nameDeathAttempt),
		DueAt:     r.time(nameDeathDueAt),
	}
	for _, t := range textsOf(&d) {
		*t.text = r.value(t.name)
		if t.safe() != *t.text {
			*t.text = ""
		}
	}
	if names := r.value(nameDeathTruncated); len(names) <= text.MaxError {
		d.Truncated = text.Words(strings.Split(names, ","))
	}
	if d.Reason == "" {
		return nil
	}
	return &d
}
