package config

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/redrive-go/redrive/operate/internal/text"
)

// Bounds of what the parser is given: its work grows with the square of them.
const (
	maxFile   = 256 << 10 // bytes
	maxTokens = 30_000    // each key, value and sign is one
	maxDepth  = 16        // of [ and {, where the configuration needs 4
	maxText   = 512       // bytes of a value
)

// unfit is found in other files than YAML, and makes positions wrong.
var unfit = []struct {
	text         *regexp.Regexp
	problem, fix string
}{
	{regexp.MustCompile(`\x{FFFD}`), "the line is not UTF-8", "save the file as UTF-8"},
	{regexp.MustCompile(`[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?:[^\n]|$)`), "there is a control character", "remove it, or save the file as UTF-8"},
	{regexp.MustCompile(`(?m)^ *\t`), "a tab indents the line", "use spaces"},
}

// parse returns the tree of a text, or notes why there is none.
func (d *decoder) parse(content []byte) (root ast.Node) {
	content = bytes.TrimPrefix(content, []byte("\ufeff"))
	if len(content) > maxFile {
		d.fault("", fmt.Sprintf("it has more than %d bytes", maxFile), "take out what is no configuration")
		return nil
	}
	for _, u := range unfit {
		if at := u.text.FindIndex(content); at != nil {
			before := content[:at[0]]
			line := before[bytes.LastIndexByte(before, '\n')+1:]
			d.faultAt(&token.Position{Line: bytes.Count(before, []byte("\n")) + 1, Column: utf8.RuneCount(line) + 1}, "", u.problem, u.fix)
			return nil
		}
	}
	tokens := lexer.Tokenize(string(content))
	if !d.bounded(tokens) {
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var at *token.Position
		problem := "this is no YAML"
		if detail, ok := errors.AsType[yaml.Error](err); ok { // whose text has the line in it, and what secret may stand there
			at, problem = detail.GetToken().Position, problem+": "+text.Line(detail.GetMessage(), maxText)
		}
		d.faultAt(at, "", problem, "mend this line, or the one above it")
		return nil
	}
	for _, doc := range file.Docs {
		switch _, isComment := doc.Body.(*ast.CommentGroupNode); {
		case doc.Body == nil || isComment:
		case root != nil:
			d.faultAt(doc.Start.Position, "", "a second document begins", "write one")
			return nil
		default:
			root = doc.Body
		}
	}
	if root == nil {
		d.fault("", "there is nothing in it", "begin with brokers, topics and store")
	}
	return root
}

// bounded demands that there are not too many tokens, nor brackets in brackets.
func (d *decoder) bounded(tokens token.Tokens) bool {
	depth := 0
	for i, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		}
		switch {
		case i == maxTokens:
			d.faultAt(t.Position, "", fmt.Sprintf("it has more than %d words and signs", maxTokens), "take out what is no configuration")
			return false
		case depth > maxDepth:
			d.faultAt(t.Position, "", "the brackets are too deep", "close some")
			return false
		}
	}
	return true
}

// scalar is the text of a single value.
func scalar(n ast.Node) (word string, ok bool) {
	switch n := n.(type) {
	case *ast.NullNode:
		return "", false
	case *ast.LiteralNode:
		return n.Value.Value, true
	case ast.ScalarNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// start is where an entry of a list begins.
func start(n ast.Node) *token.Position {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		n = m.Values[0].Key
	}
	return n.GetToken().Position
}
