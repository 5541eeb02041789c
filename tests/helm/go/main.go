// A real API server for the tests: what it stores, defaults, refuses and allows is what a cluster's does. Nothing
// schedules and no controller runs. `helm` is a tool of the same module, so that both share what they compile.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
