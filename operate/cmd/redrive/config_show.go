package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
)

func newConfigShow(streams term.Streams, s *setup) *cobra.Command {
	v := &view{}
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print all settings that are in force",
		Long: `Show prints all settings that are in force, those of the file and the defaults.
It says where secrets are, and does not read them.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := s.load()
			if err != nil {
				return faulty(err)
			}
			return show(streams, v, settingTable, all(settingRows(c)))
		},
	}
	v.register(cmd.Flags())
	return cmd
}

// settingRow is a setting that is in force.
type settingRow struct {
	// Key is the path of the key in the file.
	Key string `json:"key"`

	// Value is the value as text, or where the secret is.
	Value string `json:"value"`

	// Line is the line of the file; 0 for a default.
	Line int `json:"line"`
}

func settingRows(c *config.Config) []settingRow {
	var rows []settingRow
	for _, s := range c.Settings() {
		rows = append(rows, settingRow(s))
	}
	return rows
}

// from is where a setting comes from.
func (r settingRow) from() string {
	if r.Line == 0 {
		return "default"
	}
	return fmt.Sprintf("line %d", r.Line)
}

var settingTable = table[settingRow]{"key from value", func(r settingRow) []any {
	return []any{r.Key, r.from(), r.Value}
}}
