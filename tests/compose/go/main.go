// What Docker's own code makes of the compose file and of the Dockerfile, as JSON:
//
//	check compose FILE...      the project, as `docker compose config` loads it: schema, anchors, references, paths
//	check dockerfile FILE      the stages with their commands, and the warnings of its linter
//
// Exit status 1 and the error's words where it refuses.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

func main() {
	found, err := read(os.Args[1:])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(words []string) (any, error) {
	switch {
	case len(words) > 1 && words[0] == "compose":
		return compose(words[1:])
	case len(words) == 2 && words[0] == "dockerfile":
		return dockerfile(words[1])
	}
	return nil, fmt.Errorf("check compose FILE... | check dockerfile FILE")
}

// Every profile is on, so that no service goes unread.
func compose(files []string) (any, error) {
	options, err := cli.NewProjectOptions(files, cli.WithOsEnv, cli.WithProfiles([]string{"*"}))
	if err != nil {
		return nil, err
	}
	return options.LoadProject(context.Background())
}

type command struct {
	Name  string
	Value instructions.Command
}

type stage struct {
	Name, Base string
	Commands   []command
}

func dockerfile(path string) (any, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	parsed, err := parser.Parse(file)
	if err != nil {
		return nil, err
	}
	warnings := []string{}
	for _, warning := range parsed.Warnings {
		warnings = append(warnings, warning.Short)
	}
	lint := linter.New(&linter.Config{Warn: func(rule, description, url, message string, at []parser.Range) {
		warnings = append(warnings, rule+": "+message)
	}})
	read, arguments, err := instructions.Parse(parsed.AST, lint)
	if err != nil {
		return nil, err
	}
	stages := []stage{}
	for _, each := range read {
		commands := []command{}
		for _, one := range each.Commands {
			commands = append(commands, command{one.Name(), one})
		}
		stages = append(stages, stage{each.Name, each.BaseName, commands})
	}
	return map[string]any{"stages": stages, "arguments": arguments, "warnings": warnings}, nil
}
