package main

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redrive-go/redrive/operate/config"
)

// setup is the configuration that the commands of a group work with.
type setup struct{ file string }

func (s *setup) register(flags *pflag.FlagSet) {
	flags.StringVar(&s.file, "config", "", "configuration `file` (default $"+config.Variable+", or "+config.DefaultFile+")")
}

func (s *setup) load() (*config.Config, error) { return config.Load(config.Find(s.file)) }

// completion returns a completion of words of the configuration: none if it has
// faults, for whoever is typing cannot be told.
func (s *setup) completion(words func(*config.Config) []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		c, err := s.load()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		left := slices.DeleteFunc(words(c), func(word string) bool { return slices.Contains(args, word) })
		slices.Sort(left)
		return slices.Compact(left), cobra.ShellCompDirectiveNoFileComp
	}
}

func brokerNames(c *config.Config) []string { return slices.Collect(maps.Keys(c.Brokers)) }

func topicNames(c *config.Config) (names []string) {
	for _, t := range c.Topics {
		names = append(names, t.Name)
	}
	return names
}

func groupNames(c *config.Config) (names []string) {
	for _, t := range c.Topics {
		names = append(names, t.Groups...)
	}
	return names
}

// completeWords lets a shell complete the words of the flags of a command that are
// choices, and of its commands'.
func completeWords(c *cobra.Command) {
	complete := func(f *pflag.Flag) {
		if words, ok := f.Value.(*choice); ok {
			// The only error is a second registration.
			_ = c.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words.words, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	c.LocalFlags().VisitAll(complete)
	for _, sub := range c.Commands() {
		completeWords(sub)
	}
}
