// Command fleet lets coding agents on several machines send each other work
// through an AMQP broker. It is both the gateway and every command.
package main

import (
	"os"

	"fleet/pkg/cli"
)

func main() { os.Exit(cli.Main()) }
