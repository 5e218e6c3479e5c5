package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/store"
)

// desk is what the commands for dead letters work with.
type desk struct {
	term.Streams
	setup
	open opener
}

// opener makes the broker that has a name in a configuration: connect.Broker, but
// for tests.
type opener func(ctx context.Context, c *config.Config, name string) (brokers.Broker, error)

func newDLQ(streams term.Streams, open opener) *cobra.Command {
	d := &desk{Streams: streams, open: open}
	c := group(&cobra.Command{
		Use:   "dlq",
		Short: "Browse dead letters, send them back, or discard them",
		Long: `The commands work with the brokers, the topics and the store of a configuration.
Letters that were collected are in the custody of the store: it is there that they
are listed, and from there that they are sent back.`,
	}, newGroups(d), newLs(d), newShow(d), newDiscard(d), newRestore(d), newExport(d), newBackup(d), newCollect(d), newPeek(d), newPutBack(d), newSend(d), newJobs(d))
	d.register(c.PersistentFlags())
	return c
}

// withStore runs f on the store of the configuration, which must be there already.
func (d *desk) withStore(ctx context.Context, f func(*config.Config, *store.Store) error) error {
	return d.withConfig(func(c *config.Config) error {
		if err := storeExists(c); err != nil {
			return err
		}
		return withStore(ctx, c, func(s *store.Store) error { return f(c, s) })
	})
}

// withNewStore is withStore for commands that may be the first to use it.
func (d *desk) withNewStore(ctx context.Context, f func(*config.Config, *store.Store) error) error {
	return d.withConfig(func(c *config.Config) error {
		return withStore(ctx, c, func(s *store.Store) error { return f(c, s) })
	})
}

func (d *desk) withConfig(f func(*config.Config) error) error {
	c, err := d.load()
	if err != nil {
		return faulty(err)
	}
	return f(c)
}

func withStore(ctx context.Context, c *config.Config, f func(*store.Store) error) (err error) {
	address, err := c.StoreAddress()
	if err != nil {
		return faulty(err)
	}
	return withStoreAt(ctx, address, f)
}

func withStoreAt(ctx context.Context, address string, f func(*store.Store) error) (err error) {
	s, err := store.Open(ctx, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return f(s)
}

// storeExists keeps a command that only looks from making a store where it is
// called by mistake.
func storeExists(c *config.Config) error {
	address, err := c.StoreAddress()
	if err != nil {
		return faulty(err)
	}
	if strings.Contains(address, "://") {
		return nil
	}
	if _, err := os.Stat(address); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there are no letters yet: %s is not there: redrive dlq collect makes it, and so does redrive serve", address)
	}
	return nil
}

// author is who changes something, and why.
type author struct{ who, because string }

func (a *author) register(flags *pflag.FlagSet) {
	flags.StringVar(&a.who, "who", "", "`name` of who does it, for the audit (default user@host)")
	flags.StringVar(&a.because, "because", "", "why it is done, for the audit")
}

// of is the author as the audit of the store has it, with the command line.
func (a *author) of(cmd *cobra.Command, args []string) store.Actor {
	who := a.who
	if who == "" {
		who = whoami()
	}
	return store.Actor{Who: who, Command: commandLine(cmd, args), Reason: a.because}
}

// whoami is user@host, as far as the system says.
func whoami() string {
	name, host := "somebody", "localhost"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

// commandLine is a command as somebody typed it, but for the flags that the audit
// has by themselves.
func commandLine(cmd *cobra.Command, args []string) string {
	words := append(strings.Fields(cmd.CommandPath()), args...)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch {
		case slices.Contains([]string{"who", "because", "config", "yes"}, f.Name):
		case f.Value.Type() == "bool" && f.Value.String() == "true":
			words = append(words, "--"+f.Name)
		default:
			words = append(words, "--"+f.Name+"="+f.Value.String())
		}
	})
	for i, word := range words {
		words[i] = quoted(word)
	}
	return strings.Join(words, " ")
}

// quoted is a word as shells read it.
func quoted(word string) string {
	plain := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_=./:,@+", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// say writes a message in lines that fit.
func (d *desk) say(format string, args ...any) {
	for _, line := range term.Wrap(term.Safe(fmt.Sprintf(format, args...)), d.Width) {
		fmt.Fprintln(d.Err, line)
	}
}

// resume is err with the words of the command that goes on, which has the
// configuration of this one.
func (d *desk) resume(err error, words ...string) error {
	if d.file != "" {
		words = append(words, "--config", quoted(d.file))
	}
	return resumable(err, words...)
}
