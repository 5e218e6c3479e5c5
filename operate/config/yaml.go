package config

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of what the parser is given: some hours of its work fit into a megabyte
// of brackets.
const (
	maxFile   = 256 << 10 // bytes
	maxTokens = 30_000    // each key, value and sign is one
	maxDepth  = 16        // of [ and {, where the configuration needs 4
	maxText   = 512       // bytes of a value
)

// parse returns the tree of a text, or notes why there is none.
func (d *decoder) parse(text []byte) (root ast.Node, ok bool) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if !d.plain(text) {
		return nil, false
	}
	tokens := lexer.Tokenize(string(text))
	if !d.allowed(tokens) {
		return nil, false
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var at place
		problem := "this is no YAML"
		if detail, ok := errors.AsType[yaml.Error](err); ok { // whose text has the line in it, and what secret may stand there
			at, problem = placeOf(detail.GetToken()), problem+": "+detail.GetMessage()
		}
		d.fault("", at, problem, "mend this line, or the one above it")
		return nil, false
	}
	for _, doc := range file.Docs {
		if doc.Body != nil {
			root = doc.Body
		}
	}
	if root == nil {
		d.fault("", place{}, "there is nothing in it", "begin with brokers, topics and store")
	}
	return root, root != nil
}

// plain demands text: what is not may be another file, or have been hurt on its
// way, and would make positions wrong.
func (d *decoder) plain(text []byte) bool {
	if len(text) > maxFile {
		d.fault("", place{}, fmt.Sprintf("it has more than %d bytes", maxFile), "take out what is no configuration")
		return false
	}
	found := len(d.faults)
	for i, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSuffix(line, []byte("\r"))
		spaces := len(line) - len(bytes.TrimLeft(line, " "))
		switch control := bytes.IndexFunc(line, isControl); {
		case !utf8.Valid(line):
			d.fault("", place{i + 1, 1}, "the line is not UTF-8", "save the file as UTF-8")
		case control >= 0:
			d.fault("", place{i + 1, utf8.RuneCount(line[:control]) + 1}, fmt.Sprintf("there is a control character, %U", line[control]), "remove it")
		case spaces < len(line) && line[spaces] == '\t':
			d.fault("", place{i + 1, spaces + 1}, "a tab indents the line", "use spaces")
		}
	}
	return len(d.faults) == found
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// useless are the signs of YAML that have no use here. An alias can stand for more
// than fits into memory, and a tag for what nobody can see.
var useless = map[token.Type]string{
	token.AnchorType:     "an anchor (&)",
	token.AliasType:      "an alias (*)",
	token.MergeKeyType:   "a merge (<<)",
	token.TagType:        "a tag (!)",
	token.MappingKeyType: "a complex key (?)",
	token.DirectiveType:  "a directive (%)",
}

// allowed demands tokens that have a meaning here, and not too many of them.
func (d *decoder) allowed(tokens token.Tokens) bool {
	found, depth, content := len(d.faults), 0, false
	seen := map[token.Type]bool{}
	for i, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.DocumentHeaderType:
			if content {
				d.fault("", placeOf(t), "a second document begins", "write one")
			}
		}
		switch sign := useless[t.Type]; {
		case i == maxTokens:
			d.fault("", placeOf(t), fmt.Sprintf("it has more than %d words and signs", maxTokens), "take out what is no configuration")
			return false
		case depth > maxDepth:
			d.fault("", placeOf(t), "the brackets are too deep", "close some")
			return false
		case sign != "" && !seen[t.Type]:
			d.fault("", placeOf(t), sign+" has no meaning here", "write what it stands for, or put the text into quotes")
		}
		seen[t.Type], content = true, content || t.Type != token.CommentType
	}
	return len(d.faults) == found
}

func placeOf(t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{}
	}
	return place{t.Position.Line, t.Position.Column}
}

// start is where a node begins.
func start(n ast.Node) place {
	switch n := n.(type) {
	case *ast.MappingNode:
		if n.IsFlowStyle || len(n.Values) == 0 {
			return placeOf(n.Start)
		}
		return start(n.Values[0])
	case *ast.MappingValueNode:
		return placeOf(n.Key.GetToken())
	case *ast.SequenceNode:
		return placeOf(n.Start)
	}
	return placeOf(n.GetToken())
}

// pairs are the keys and values of a mapping.
func pairs(n ast.Node) (values []*ast.MappingValueNode, ok bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

// scalar is the text of a single value.
func scalar(n ast.Node) (text string, ok bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// kindOf says what a node is, for people.
func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "has keys of its own"
	case *ast.SequenceNode:
		return "is a list"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "is a number"
	case *ast.BoolNode:
		return "is true or false"
	case *ast.StringNode, *ast.LiteralNode:
		return "is a text"
	}
	return "has no value"
}
