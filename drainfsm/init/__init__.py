"""What ``drainfsm init`` sees in a directory, and what it proposes. Writes nothing by itself."""
