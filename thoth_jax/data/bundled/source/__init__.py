"""The bundled protocols as structured YAML, one file per subfield; builder/source.py reads them."""
