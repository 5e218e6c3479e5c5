package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-go/redrive/operate/internal/typo"
	"github.com/redrive-go/redrive/operate/storm"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/budget"
)

// choice is a flag with one of a few words.
type choice struct {
	value string
	words []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return "word" }

func (c *choice) Set(s string) error {
	if !slices.Contains(c.words, s) {
		return fmt.Errorf("use %s", typo.AnyOf(c.words))
	}
	c.value = s
	return nil
}

// list is a flag with values between commas, each of which is parsed by itself.
// It may be empty if it is so at first.
type list[T any] struct {
	text     string
	values   []T
	required bool
	parse    func(string) (T, error)
}

func newList[T any](initial string, parse func(string) (T, error)) *list[T] {
	l := &list[T]{parse: parse}
	if err := l.Set(initial); err != nil {
		panic("the default of a flag is wrong: " + err.Error())
	}
	l.required = initial != ""
	return l
}

func (l *list[T]) String() string { return l.text }
func (l *list[T]) Type() string   { return "list" }

const maxListed = 16

func (l *list[T]) Set(s string) error {
	var values []T
	if s != "" || l.required {
		parts := strings.Split(s, ",")
		if len(parts) > maxListed {
			return fmt.Errorf("there are %d values: use %d at most", len(parts), maxListed)
		}
		for _, part := range parts {
			v, err := l.parse(part)
			if err != nil {
				return err
			}
			values = append(values, v)
		}
	}
	l.text, l.values = s, values
	return nil
}

var jitters = []string{"full", "equal", "decorrelated", "none"}

// jitter turns a word into a jitter of the library.
func jitter(word string) (retry.Jitter, bool) {
	switch word {
	case "full":
		return retry.FullJitter, true
	case "equal":
		return retry.EqualJitter, true
	case "decorrelated":
		return retry.DecorrelatedJitter, true
	case "none":
		return retry.NoJitter, true
	}
	return 0, false
}

// strategy is a policy by name.
type strategy struct {
	name  string
	retry bool
	gauss bool
	retry.Jitter
}

func parseStrategy(s string) (strategy, error) {
	switch s {
	case "no-retry":
		return strategy{name: s}, nil
	case "gaussian":
		return strategy{name: s, retry: true, gauss: true}, nil
	}
	if j, ok := jitter(s); ok {
		return strategy{name: s, retry: true, Jitter: j}, nil
	}
	return strategy{}, fmt.Errorf("there is no policy %q: use no-retry, none, equal, full, decorrelated or gaussian", s)
}

// allowance is a budget by name; nil means none.
type allowance struct {
	name   string
	config *budget.Config
}

const budgetForms = "off, queue, mesh, or a share and a floor such as 10%+1/s"

func parseBudget(s string) (allowance, error) {
	var config budget.Config
	switch s {
	case "off":
		return allowance{name: s}, nil
	case "queue":
		config = budget.Queue()
	case "mesh":
		config = budget.Mesh()
	default:
		var err error
		if config.Share, config.Floor, err = shareAndFloor(s); err != nil {
			return allowance{}, err
		}
	}
	if _, err := budget.New(config); err != nil {
		return allowance{}, err
	}
	return allowance{s, &config}, nil
}

func shareAndFloor(s string) (share, floor float64, err error) {
	first, second, both := strings.Cut(s, "+")
	first, inPercent := strings.CutSuffix(first, "%")
	second, perSecond := strings.CutSuffix(second, "/s")
	share, err1 := strconv.ParseFloat(first, 64)
	floor, err2 := strconv.ParseFloat(second, 64)
	if !both || !perSecond || err1 != nil || err2 != nil {
		return 0, 0, fmt.Errorf("%q is no budget: use %s", s, budgetForms)
	}
	if inPercent {
		share /= 100
	}
	return share, floor, nil
}

func parseBreaker(s string) (string, error) {
	switch storm.Gate(s) {
	case storm.NoGate, storm.Classic, storm.Breaker, storm.Limit:
		return s, nil
	}
	return "", fmt.Errorf("%q is no breaker: use off, classic, on or limit", s)
}

// maxHopAttempts keeps the product of all hops a number that can be printed.
const maxHopAttempts = 1000

var errHop = errors.New("use attempts from 1 to 1000, or name=attempts")

func parseHop(s string) (storm.Hop, error) {
	name, attempts, named := strings.Cut(s, "=")
	if !named {
		name, attempts = "", s
	}
	n, err := strconv.Atoi(attempts)
	if err != nil || n < 1 || n > maxHopAttempts || named && name == "" {
		return storm.Hop{}, fmt.Errorf("%q is no hop: %w", s, errHop)
	}
	return storm.Hop{Name: name, Attempts: n}, nil
}
