package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/typo"
	"github.com/redrive-go/redrive/operate/store"
)

// selection is the flags and arguments that say which letters.
type selection struct {
	group        int64 // of letters that failed alike
	filter       store.Filter
	states       *list[string]
	since, until moment
	header       string
	all          bool
}

// Words of --state that stand for several states.
const (
	stateOpen = "open" // what still needs somebody
	stateAny  = "all"
)

func stateWords() []string {
	words := []string{stateOpen, stateAny}
	for _, s := range store.States() {
		words = append(words, string(s))
	}
	return words
}

// registerGroups is for what can be said of groups of letters, too. The states are
// those of the letters unless the flag is given; empty for all that the command
// can do something with.
func (s *selection) registerGroups(flags *pflag.FlagSet, states string) {
	f := &s.filter
	flags.StringVar(&f.Topic, "topic", "", "letters of this `topic`")
	flags.StringVar(&f.Broker, "broker", "", "letters of this `broker`, by its name in the configuration")
	flags.StringVar(&f.Source, "source", "", "letters collected from this dead-letter `topic`")
	flags.StringVar(&f.Group, "group", "", "letters that this consumer `group` gave up")
	flags.StringVar(&f.Reason, "reason", "", "letters with this reason, a `word` such as exhausted")
	flags.StringVar(&f.Class, "class", "", "letters whose last error has this class, a `word` such as transient")
	flags.StringVar(&f.Format, "format", "", "letters of this format, a `word` such as redrive or spring-kafka")
	flags.Var(&s.since, "since", "letters that died since: a `time` such as 2h, 3d, 2026-11-25 or 2026-11-25T03:00:00Z")
	flags.Var(&s.until, "until", "letters that died before this `time`")
	s.states = newList(states, parseState)
	s.states.required = false
	flags.Var(s.states, "state", "letters in these states, such as open, all, or skipped,unknown")
}

// registerLetters adds what only letters have.
func (s *selection) registerLetters(flags *pflag.FlagSet, states string) {
	s.registerGroups(flags, states)
	flags.Int64Var(&s.group, "error", 0, "letters of this error group, a `number` that redrive dlq groups shows")
	flags.StringVar(&s.filter.MessageID, "id", "", "letters of the message with this `ID`")
	flags.StringVar(&s.header, "header", "", "letters with this header, `name=value`, or only its name")
	flags.StringVar(&s.filter.Text, "text", "", "letters with this `text` in the error or in the first 64 KiB of the body")
}

// registerAll is for commands that change letters, which must be told which.
func (s *selection) registerAll(flags *pflag.FlagSet) {
	s.registerLetters(flags, "")
	flags.BoolVar(&s.all, "all", false, "all letters")
}

// completeFrom has the shell complete flags from the configuration and the store.
func (s *selection) completeFrom(cmd *cobra.Command, d *desk) {
	complete := func(flag string, words cobra.CompletionFunc) {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, words) // the only error is a second one
		}
	}
	complete("broker", d.completion(brokerNames))
	complete("topic", d.stored(topicNames, func(c store.Cluster) string { return c.Topic }))
	complete("group", d.stored(groupNames, func(c store.Cluster) string { return c.Group }))
	complete("source", d.stored(nil, func(c store.Cluster) string { return c.Source }))
	complete("reason", d.stored(nil, func(c store.Cluster) string { return c.Reason }))
	complete("class", d.stored(nil, func(c store.Cluster) string { return c.Class }))
	complete("format", d.stored(nil, func(c store.Cluster) string { return c.Format }))
	complete("error", d.stored(nil, func(c store.Cluster) string {
		return fmt.Sprintf("%d\t%s", c.ID, term.Fit(term.Safe(c.ErrorText), 60))
	}))
	complete("state", cobra.FixedCompletions(stateWords(), cobra.ShellCompDirectiveNoFileComp))
}

// stored returns a completion of words of the configuration and of the groups in
// the store: none of what cannot be read, for whoever is typing cannot be told.
func (d *desk) stored(words func(*config.Config) []string, of func(store.Cluster) string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		var found []string
		_ = d.withStore(cmd.Context(), func(c *config.Config, s *store.Store) error {
			if words != nil {
				found = words(c)
			}
			groups, err := s.Clusters(cmd.Context(), store.Filter{}, store.ByLastDeath, store.Page{Limit: 1000})
			for _, g := range groups.Clusters {
				if word := of(g); word != "" && term.Safe(strings.ReplaceAll(word, "\t", " ")) == strings.ReplaceAll(word, "\t", " ") {
					found = append(found, word)
				}
			}
			return err
		})
		slices.Sort(found)
		return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
	}
}

// letters is the filter of a command; args are numbers of letters. All faults are
// reported at once.
func (s *selection) letters(args []string, now time.Time) (f store.Filter, err error) {
	var faults []error
	f = s.filter
	f.Cluster = s.group
	f.States = statesOf(s.states.values)
	f.Since, f.Until = s.since.at(now), s.until.at(now)
	if s.header != "" {
		name, value, both := strings.Cut(s.header, "=")
		if f.Header.Name = name; both {
			f.Header.Value = &value
		}
		if name == "" {
			faults = append(faults, fmt.Errorf("--header %q has no name: use name=value", s.header))
		}
	}
	for _, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id < 0 {
			faults = append(faults, fmt.Errorf("%q is no number of a letter: use those that redrive dlq ls shows", arg))
		}
		f.IDs = append(f.IDs, id)
	}
	return f, usage(errors.Join(faults...))
}

// listed is letters for commands that list them. Whoever names a letter wants to see
// it in any state.
func (s *selection) listed(cmd *cobra.Command, args []string) (store.Filter, error) {
	if len(args) > 0 && !cmd.Flags().Changed("state") {
		s.states.values = nil
	}
	return s.letters(args, time.Now())
}

// chosen is letters for commands that change what they are given: no selection is
// a mistake, and so is --all together with one.
func (s *selection) chosen(args []string, now time.Time) (store.Filter, error) {
	f, err := s.letters(args, now)
	if err != nil {
		return f, err
	}
	none := len(f.IDs) == 0 && f.Cluster == 0 && f.Broker+f.Source+f.Topic+f.Group+f.Reason+f.Class+f.Format+f.MessageID+f.Header.Name+f.Text == "" &&
		len(s.states.values) == 0 && f.Since.IsZero() && f.Until.IsZero()
	switch {
	case none && !s.all:
		return f, usage(errors.New("nothing was done: say which letters: numbers, a selection such as --error 3, or --all"))
	case !none && s.all:
		return f, usage(errors.New("nothing was done: --all stands for all letters, and there is a selection: use one of them"))
	}
	return f, nil
}

// order is a call of a command that changes letters.
type order struct {
	*desk
	v     *view
	c     *consent
	actor store.Actor
	again string // the command line
	cfg   *config.Config
	store *store.Store
}

// newOrder adds to a command all that it takes to change the letters that are
// selected.
func newOrder(d *desk, run func(context.Context, order, store.Filter) error, cmd *cobra.Command) *cobra.Command {
	v, s, a, c := &view{}, &selection{}, &author{}, &consent{}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := s.chosen(args, time.Now())
		if err != nil {
			return err
		}
		return d.withStore(cmd.Context(), func(cfg *config.Config, st *store.Store) error {
			return run(cmd.Context(), order{d, v, c, a.of(cmd, args), commandLine(cmd, args), cfg, st}, f)
		})
	}
	v.register(cmd.Flags())
	s.registerAll(cmd.Flags())
	a.register(cmd.Flags())
	c.register(cmd.Flags())
	s.completeFrom(cmd, d)
	return cmd
}

// byNumber reports whether letters were named one by one.
func byNumber(f store.Filter) bool { return len(f.IDs) > 0 }

func parseState(word string) (string, error) {
	if !slices.Contains(stateWords(), word) {
		return "", fmt.Errorf("there is no state %q: use %s", word, typo.AnyOf(stateWords()))
	}
	return word, nil
}

// statesOf turns words into states; nil stands for all.
func statesOf(words []string) (states []store.State) {
	for _, word := range words {
		switch word {
		case stateAny:
			return nil
		case stateOpen:
			states = append(states, openStates()...)
		default:
			states = append(states, store.State(word))
		}
	}
	return states
}

func openStates() []store.State {
	return slices.DeleteFunc(store.States(), func(s store.State) bool {
		return s == store.StateConfirmed || s == store.StateReturned || s == store.StateDiscarded
	})
}

// moment is a flag with a time, or with how long ago it was.
type moment struct {
	text string
	ago  time.Duration
	time time.Time
}

func (m *moment) String() string { return m.text }
func (m *moment) Type() string   { return "time" }

var momentForms = []string{time.RFC3339, "2006-01-02T15:04", time.DateTime, "2006-01-02 15:04", time.DateOnly}

func (m *moment) Set(s string) error {
	var ago config.Wait
	if ago.UnmarshalText([]byte(s)) == nil {
		*m = moment{text: s, ago: time.Duration(ago)}
		return nil
	}
	for _, form := range momentForms {
		if t, err := time.Parse(form, s); err == nil {
			*m = moment{text: s, time: t}
			return nil
		}
	}
	return fmt.Errorf("%q is no time: use how long ago, such as 2h or 3d, or a time of UTC, such as 2026-11-25 or 2026-11-25T03:00:00Z", s)
}

func (m *moment) at(now time.Time) time.Time {
	if m.ago > 0 {
		return now.Add(-m.ago)
	}
	return m.time
}

// paging is the flags of a list that comes in pages.
type paging struct {
	limit int
	after string
}

func (p *paging) register(flags *pflag.FlagSet) {
	flags.IntVar(&p.limit, "limit", 50, "how many `rows` to show at most, up to 1000")
	flags.StringVar(&p.after, "after", "", "go on after this `place`, which the page before told")
}

const maxRows = 1000

func (p *paging) check() error {
	if p.limit < 1 || p.limit > maxRows {
		return usage(fmt.Errorf("--limit is %d: use 1 to %d", p.limit, maxRows))
	}
	return nil
}

// tell says how to see the rows that follow.
func (p *paging) tell(s term.Streams, next string) {
	if next != "" {
		fmt.Fprintf(s.Err, "There is more: add --after %s\n", next)
	}
}

// allLetters returns all letters that a filter selects, the latest death first.
func allLetters(ctx context.Context, s *store.Store, f store.Filter) iter.Seq2[letterRow, error] {
	return pageOfLetters(ctx, s, f, math.MaxInt, new(string))
}
