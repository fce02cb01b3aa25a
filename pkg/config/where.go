package config

import "os"

// DefaultDir is the host's directory where the command line names none: FLEET_DIR,
// else .fleet under the passwd home. It need not exist.
func DefaultDir() (string, error) { return FindDir(os.Getenv, passwdHome) }

// PathsOf says where the files of the host in dir live, without reading its
// configuration.
func PathsOf(dir string) Paths { return Paths{dir} }
