"""The configuration: typed models of the YAML file, its loader, arms and plug-ins."""
